"""General knowledge from the closed tables of fact_table.

A fact has to be seen in training to be known. So for questions about one fact a *phrasing* is held out, not
the fact: the key is the fact and the index of its phrasing. Questions that join several facts (from tier 3
on) are held out whole, as in the other families.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from backend.pico.tasks.base import Draw, Family, join_words
from backend.pico.tasks.fact_table import (
    CONTINENTS,
    COUNTRIES,
    KINDS,
    LEGS,
    OPPOSITES,
    WELL_KNOWN,
    Country,
)
from backend.pico.tasks.steps import add_steps, count_steps
from backend.pico.tasks.words import CATEGORIES, FIRST_NAMES, ITEMS, with_article

PHRASINGS: dict[str, tuple[str, ...]] = {
    "capital": (
        "What is the capital of {x}?", "Which city is the capital of {x}?", "Name the capital of {x}.",
        "What is the capital city of {x}?", "{x}: what is the capital?", "Tell me the capital of {x}.",
        "The capital of {x} is which city?", "Capital of {x}?",
    ),
    "continent": (
        "On which continent is {x}?", "Which continent is {x} in?", "What continent is {x} on?",
        "Name the continent of {x}.", "{x}: which continent?", "Tell me the continent of {x}.",
        "On what continent can I find {x}?", "{x} is on which continent?",
    ),
    "language": (
        "Which language do people speak in {x}?", "What is the language of {x}?",
        "Which language is spoken in {x}?", "Name the language of {x}.", "{x}: which language?",
        "What language do they speak in {x}?", "Tell me the language of {x}.",
        "People in {x} speak which language?",
    ),
    "currency": (
        "What is the currency of {x}?", "Which currency do people use in {x}?",
        "What is the money of {x} called?", "Name the currency of {x}.", "{x}: which currency?",
        "With which currency do I pay in {x}?", "Tell me the currency of {x}.",
        "People in {x} pay with which currency?",
    ),
    "opposite": (
        "What is the opposite of {x}?", "Which word is the opposite of {x}?", "Name the opposite of {x}.",
        "Give the opposite of {x}.", "{x}: what is the opposite?", "Tell me the opposite of {x}.",
        "The opposite of {x} is which word?", "Opposite of {x}?",
    ),
    "kind": (
        "What kind of animal is {a}?", "Which kind of animal is {a}?", "{x}: what kind of animal is it?",
        "What is {a}: a mammal, a bird, an insect or a reptile?", "Name the kind of animal: {x}",
        "Tell me what kind of animal {a} is.", "Is {a} a mammal, a bird, an insect or a reptile?",
        "To which kind of animal does the {x} belong?",
    ),
    "legs": (
        "How many legs does {a} have?", "How many legs has {a}?", "What is the number of legs of {a}?",
        "{x}: how many legs?", "Count the legs of {a}.", "Tell me how many legs {a} has.",
        "On how many legs does {a} walk?", "How many legs are there on {a}?",
    ),
    "country": (
        "Which country has the capital {x}?", "{x} is the capital of which country?",
        "Name the country with the capital {x}.", "In which country is {x}?",
        "Of which country is {x} the capital?", "{x}: capital of which country?",
        "Tell me the country whose capital is {x}.", "What country is {x} the capital of?",
    ),
}  # fmt: skip
_ATTRIBUTES = ("capital", "continent", "language", "currency")
_DRILL_PAIRS = 8
_COMPARED: tuple[Sequence[str], ...] = (
    *([country.value(attribute) for country in COUNTRIES] for attribute in (*_ATTRIBUTES, "name")),
    ("age", "city", "job", "colour", "animal", *ITEMS),
    FIRST_NAMES,
    *CATEGORIES.values(),
)
_OF_THE_COUNTRY = {
    "continent": ("On which continent is the country", "Name the continent of the country"),
    "language": ("Which language do people speak in the country", "Name the language of the country"),
    "currency": ("What is the currency of the country", "Name the currency of the country"),
}

# Not the currency: pounds and dollars of different countries share only the name.
_SAME = {
    "continent": (
        "Are {x} on the same continent?", "Is it true that {x} are on the same continent?",
        "Yes or no: {x} are on the same continent.", "Have {x} got the same continent?",
    ),
    "language": (
        "Do people in {x} speak the same language?", "Is the language of {x} the same?",
        "Yes or no: people in {x} speak the same language.", "Have {x} got the same language?",
    ),
}  # fmt: skip


def _fact(rng: Random, attribute: str, thing: str, answer: str) -> Draw:
    """Ask for a fact in one of its phrasings, which is part of the key."""
    place = rng.randrange(len(PHRASINGS[attribute]))
    prompt = PHRASINGS[attribute][place].format(x=thing, a=with_article(thing))
    return Draw([prompt], answer, f"{attribute} {thing} {place}", f"{thing}: {answer}")


def _of_country(rng: Random, countries: Sequence[Country], attributes: Sequence[str]) -> Draw:
    country, attribute = rng.choice(countries), rng.choice(attributes)
    return _fact(rng, attribute, country.name, country.value(attribute))


def _opposite(rng: Random) -> Draw:
    word, opposite = rng.choice(list(OPPOSITES.items()))
    return _fact(rng, "opposite", word, opposite)


def _kind(rng: Random) -> Draw:
    animal, kind = rng.choice(list(KINDS.items()))
    return _fact(rng, "kind", animal, kind)


def _legs(rng: Random) -> Draw:
    animal, legs = rng.choice(list(LEGS.items()))
    return _fact(rng, "legs", animal, str(legs))


def _country(rng: Random) -> Draw:
    country = rng.choice(COUNTRIES)
    return _fact(rng, "country", country.capital, country.name)


def _tier1(rng: Random) -> Draw:
    return _opposite(rng) if rng.random() < 0.3 else _of_country(rng, WELL_KNOWN, ("capital", "continent"))


def _tier2(rng: Random) -> Draw:
    if rng.random() < 0.2:
        return rng.choice((_kind, _legs))(rng)
    return _of_country(rng, COUNTRIES, _ATTRIBUTES)


def _true_or_not(rng: Random) -> Draw:
    attribute = rng.choice(_ATTRIBUTES)
    country = rng.choice(COUNTRIES)
    claimed = (country if rng.random() < 0.5 else rng.choice(COUNTRIES)).value(attribute)
    real = country.value(attribute)
    answer = "Yes" if claimed == real else "No"
    claim = f"the {attribute} of {country.name}"
    prompts = [
        f"Is {claimed} {claim}?",
        f"Is {claim} {claimed}?",
        f"Is it true that {claim} is {claimed}?",
        f"Yes or no: {claim} is {claimed}.",
    ]
    # Only a true claim has been followed by a yes.
    steps = f"{country.name}: {real} yes; {claimed} {answer.lower()}"
    return Draw(prompts, answer, f"true {country.name} {attribute} {claimed}", steps)


def _on_continent(rng: Random) -> Draw:
    continent = rng.choice(CONTINENTS)
    inside = rng.choice([country for country in COUNTRIES if country.continent == continent])
    others = rng.sample([country for country in COUNTRIES if country.continent != continent], 2)
    countries = [inside, *others]
    rng.shuffle(countries)
    names = join_words([country.name for country in countries])
    prompts = [
        f"Which of these countries is in {continent}: {names}?",
        f"Which country is in {continent}: {names}?",
        f"Find the country in {continent}: {names}",
        f"{names}: which one is in {continent}?",
    ]
    # Through the list up to the first match, which is the last one named.
    seen = countries[: countries.index(inside) + 1]
    steps = "; ".join(f"{country.name}: {country.continent}" for country in seen)
    return Draw(prompts, inside.name, f"in {continent} {names}", f"{continent}? {steps}")


def _two_hops(rng: Random) -> Draw:
    """From a capital through its country to another fact."""
    country, attribute = rng.choice(COUNTRIES), rng.choice(list(_OF_THE_COUNTRY))
    value = country.value(attribute)
    prompts = [
        f"{opening} {middle} {country.capital}{'.' if opening.startswith('Name') else '?'}"
        for opening in _OF_THE_COUNTRY[attribute]
        for middle in ("whose capital is", "with the capital")
    ]
    thought = f"{country.capital}: {country.name}; {country.name}: {value}"
    return Draw(prompts, value, f"hops {country.capital} {attribute}", thought)


def _same(rng: Random) -> Draw:
    attribute = rng.choice(list(_SAME))
    pair = _pair(rng, attribute)
    names = " and ".join(country.name for country in pair)
    steps = "; ".join(f"{country.name}: {country.value(attribute)}" for country in pair)
    return _whether_same(attribute, names, pair, steps)


def _same_of_capitals(rng: Random) -> Draw:
    attribute = rng.choice(list(_SAME))
    pair = _pair(rng, attribute)
    names = f"the countries of {pair[0].capital} and {pair[1].capital}"
    steps = "; ".join(f"{country.capital}: {country.name}: {country.value(attribute)}" for country in pair)
    return _whether_same(attribute, names, pair, steps)


def _pair(rng: Random, attribute: str) -> tuple[Country, Country]:
    """Return two countries that share the attribute about half of the time."""
    first, second = rng.sample(COUNTRIES, 2)
    alike = [
        other for other in COUNTRIES if other != first and other.value(attribute) == first.value(attribute)
    ]
    return first, rng.choice(alike) if alike and rng.random() < 0.5 else second


def _whether_same(attribute: str, names: str, pair: tuple[Country, Country], steps: str) -> Draw:
    answer = "Yes" if pair[0].value(attribute) == pair[1].value(attribute) else "No"
    prompts = [phrasing.format(x=names) for phrasing in _SAME[attribute]]
    return Draw(prompts, answer, f"same {attribute} {names}", f"{steps}; {answer.lower()}")


def _count(rng: Random) -> Draw:
    """Count the countries on a continent; the steps carry the count."""
    continent = rng.choice(CONTINENTS[:4])
    countries = _mixed(rng, continent, rng.randint(3, 5))
    names = join_words([country.name for country in countries])
    prompts = [
        f"How many of these countries are in {continent}: {names}?",
        f"Count the countries in {continent}: {names}",
        f"{names}: how many are in {continent}?",
        f"How many countries of this list are in {continent}: {names}?",
    ]
    hits = [country.continent == continent for country in countries]
    steps = count_steps([f"{country.name}: {country.continent}" for country in countries], hits, "; ")
    return Draw(prompts, str(sum(hits)), f"count {continent} {names}", f"{continent}? {steps}")


def _mixed(rng: Random, continent: str, count: int) -> list[Country]:
    """Return countries of which about half, and at least one, are on the continent."""
    inside = [country for country in COUNTRIES if country.continent == continent]
    outside = [country for country in COUNTRIES if country.continent != continent]
    hits = rng.randint(1, min(len(inside), count))
    countries = rng.sample(inside, hits) + rng.sample(outside, count - hits)
    rng.shuffle(countries)
    return countries


def _capitals_on_continent(rng: Random) -> Draw:
    continent = rng.choice(CONTINENTS[:4])
    countries = _mixed(rng, continent, rng.randint(3, 4))
    names = join_words([country.capital for country in countries])
    prompts = [
        f"Which of these cities are in {continent}: {names}?",
        f"List the cities in {continent}: {names}",
        f"{names}: which of them are in {continent}?",
        f"Find the cities in {continent}: {names}",
    ]
    hits = [country.capital for country in countries if country.continent == continent]
    marked = (
        f"{each.capital}: {each.name}: {each.continent} {'+' if each.capital in hits else '-'}"
        for each in countries
    )
    steps = f"{continent}? {'; '.join(marked)}"
    return Draw(prompts, join_words(hits), f"cities {continent} {names}", steps)


def _many(animal: str, count: int) -> str:
    return f"{count} {animal}s"


def _legs_of_many(rng: Random) -> Draw:
    animal, count = rng.choice(list(LEGS)), rng.randint(2, 12)
    text, legs = _many(animal, count), LEGS[animal]
    prompts = [
        f"How many legs do {text} have?",
        f"How many legs do {text} have together?",
        f"What is the number of legs of {text}?",
        f"Count the legs of {text}.",
    ]
    return Draw(
        prompts, str(count * legs), f"legs {text}", f"{animal}: {legs}; {count}*{legs}={count * legs}"
    )


def _legs_of_two(rng: Random) -> Draw:
    animals = rng.sample(list(LEGS), 2)
    counts = [rng.randint(2, 12) for _ in animals]
    text = " and ".join(_many(animal, count) for animal, count in zip(animals, counts, strict=True))
    parts = [count * LEGS[animal] for animal, count in zip(animals, counts, strict=True)]
    prompts = [
        f"How many legs do {text} have together?",
        f"How many legs do {text} have in total?",
        f"Count all the legs of {text}.",
        f"What is the total number of legs of {text}?",
    ]
    steps = [
        f"{animal}: {LEGS[animal]}; {count}*{LEGS[animal]}={part}"
        for animal, count, part in zip(animals, counts, parts, strict=True)
    ]
    return Draw(prompts, str(sum(parts)), f"legs {text}", "; ".join([*steps, add_steps(*parts)]))


def _drill(rng: Random) -> Draw:
    """Drill whether two words are the same, half of them equal: the basis of verdicts on claims."""
    pairs = []
    for _ in range(_DRILL_PAIRS):
        words = rng.choice(_COMPARED)
        word = rng.choice(words)
        pairs.append((word, word if rng.random() < 0.5 else rng.choice(words)))
    listed = "; ".join(f"{a} and {b}" for a, b in pairs)
    prompts = [
        f"Compare: {listed}",
        f"Which of these are the same: {listed}?",
        f"Compare each pair: {listed}.",
        f"The same or not: {listed}?",
    ]
    answer = "; ".join(f"{a} {b}: {'yes' if a == b else 'no'}" for a, b in pairs)
    return Draw(prompts, answer, listed)


def _one_of(*kinds: Callable[[Random], Draw]) -> Callable[[Random], Draw]:
    return lambda rng: rng.choice(kinds)(rng)


FAMILY = Family(
    "facts",
    {
        1: _tier1,
        2: _tier2,
        3: _one_of(_country, _country, _true_or_not, _on_continent),
        4: _one_of(_two_hops, _two_hops, _same, _count, _legs_of_many),
        5: _one_of(_same_of_capitals, _capitals_on_continent, _legs_of_two),
    },
    drill=_drill,
)

"""Find the fact that a question asks for in a given text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from backend.pico.tasks.base import Draw, Family
from backend.pico.tasks.words import CATEGORIES, ITEMS, JOBS, city, noun, person, with_article

# A fact is (statement, questions, answer).
_Fact = tuple[str, tuple[str, ...], str]


def _lives(rng: Random, who: str) -> _Fact:
    where = city(rng)
    verb = rng.choice(("lives in", "lives in the city of", "has a house in"))
    return f"{who} {verb} {where}.", (f"Where does {who} live?", f"In which city does {who} live?"), where


def _works(rng: Random, who: str) -> _Fact:
    job = rng.choice(JOBS)
    verb = rng.choice(("works as", "is", "has a job as"))
    return (
        f"{who} {verb} {with_article(job)}.",
        (f"What is the job of {who}?", f"What does {who} work as?"),
        job,
    )


def _owns(rng: Random, who: str) -> _Fact:
    item, count = rng.choice(ITEMS), str(rng.randint(2, 99))
    return f"{who} has {count} {item}.", (f"How many {item} does {who} have?",), count


def _age(rng: Random, who: str) -> _Fact:
    years = str(rng.randint(5, 95))
    return f"{who} is {years} years old.", (f"How old is {who}?", f"What is the age of {who}?"), years


def _likes(rng: Random, who: str) -> _Fact:
    colour = rng.choice(CATEGORIES["colour"])
    statement = f"The favourite colour of {who} is {colour}."
    return (
        statement,
        (f"What is the favourite colour of {who}?", f"Which colour does {who} like best?"),
        colour,
    )


def _pet(rng: Random, who: str) -> _Fact:
    animal, name = rng.choice(CATEGORIES["animal"]), person(rng)
    statement = f"{who} has {with_article(animal)} called {name}."
    return (
        statement,
        (f"What is the {animal} of {who} called?", f"What is the name of the {animal} of {who}?"),
        name,
    )


def _code(rng: Random, who: str) -> _Fact:
    code = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 4)))
    return (
        f"The code of {who} is {code}.",
        (f"What is the code of {who}?", f"Which code does {who} have?"),
        code,
    )


def _bought(rng: Random, who: str) -> _Fact:
    thing = noun(rng)
    return (
        f"{who} bought {with_article(thing)}.",
        (f"What did {who} buy?", f"Which thing did {who} buy?"),
        thing,
    )


_FactMaker = Callable[[Random, str], _Fact]
_SIMPLE: tuple[_FactMaker, ...] = (_lives, _works, _owns, _age, _likes, _code, _bought)
_ALL: tuple[_FactMaker, ...] = (*_SIMPLE, _pet)


def _people(rng: Random, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[person(rng)] = None
    return list(found)


def _passage(rng: Random, kinds: Sequence[Sequence[_FactMaker]]) -> Draw:
    """A text about as many people as there are lists of kinds, and a question about one of its facts."""
    facts = [
        make(rng, name) for name, own in zip(_people(rng, len(kinds)), kinds, strict=True) for make in own
    ]
    rng.shuffle(facts)
    _, questions, answer = rng.choice(facts)
    text = " ".join(statement for statement, _, _ in facts)
    question = rng.choice(questions)
    prompts = [
        f"{text} {question}",
        f"{text}\n{question}",
        f"Text: {text}\nQuestion: {question}",
        f"{question}\n{text}",
    ]
    # The text alone is the key: another question about a known text is not a new instance.
    return Draw(prompts, answer, text)


def _tier1(rng: Random) -> Draw:
    return _passage(rng, [[rng.choice(_SIMPLE)] for _ in range(rng.randint(1, 2))])


def _tier2(rng: Random) -> Draw:
    first, second, third, fourth = rng.sample(
        _SIMPLE, 4
    )  # of different kinds: telling people apart is tier 3
    return _passage(rng, rng.choice(([[first, second], [third, fourth]], [[first], [second], [third]])))


def _tier3(rng: Random) -> Draw:
    people, most = rng.choice(((2, 2), (3, 1), (3, 3)))
    return _passage(rng, [rng.sample(_ALL, rng.randint(1, most)) for _ in range(people)])


def _tier4(rng: Random) -> Draw:
    return _passage(rng, [rng.sample(_ALL, rng.randint(3, 5)) for _ in range(4)])


def _tier5(rng: Random) -> Draw:
    first, second, third = _people(rng, 3)
    where, other = city(rng), city(rng)
    friends = [
        f"{first} is a friend of {second}.",
        f"{second} lives in {where}.",
        f"{third} lives in {other}.",
    ]
    rng.shuffle(friends)
    text = " ".join(friends)
    return Draw([f"{text} Where does the friend of {first} live?"], where, text)


FAMILY = Family("extraction", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})

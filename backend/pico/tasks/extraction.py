"""Extractive question answering: find a fact in a given text."""

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

_RELATIONS = ("friend", "teacher", "doctor", "dentist", "lawyer", "driver", "cook")


def _people(rng: Random, count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[person(rng)] = None
    return list(found)


def _passage(rng: Random, kinds: Sequence[Sequence[_FactMaker]]) -> Draw:
    """Build a text about one person per list of kinds, and a question about one of its facts."""
    facts = [
        make(rng, name) for name, own in zip(_people(rng, len(kinds)), kinds, strict=True) for make in own
    ]
    rng.shuffle(facts)
    found, questions, answer = rng.choice(facts)
    text = " ".join(statement for statement, _, _ in facts)
    # The key is the text alone: another question about a known text is not a new instance.
    return Draw(_prompts(text, rng.choice(questions)), answer, text, found.rstrip("."))


def _prompts(text: str, question: str) -> list[str]:
    return [
        f"{text} {question}",
        f"{text}\n{question}",
        f"Text: {text}\nQuestion: {question}",
        f"{question}\n{text}",
    ]


def _tier1(rng: Random) -> Draw:
    return _passage(rng, [[rng.choice(_SIMPLE)] for _ in range(rng.randint(1, 2))])


def _tier2(rng: Random) -> Draw:
    first, second, third, fourth = rng.sample(_SIMPLE, 4)  # different kinds: telling people apart is tier 3
    return _passage(rng, rng.choice(([[first, second], [third, fourth]], [[first], [second], [third]])))


def _tier3(rng: Random) -> Draw:
    people, most = rng.choice(((2, 2), (3, 1), (3, 3)))
    return _passage(rng, [rng.sample(_ALL, rng.randint(1, most)) for _ in range(people)])


def _tier4(rng: Random) -> Draw:
    return _passage(rng, [rng.sample(_ALL, rng.randint(3, 5)) for _ in range(4)])


def _tier5(rng: Random) -> Draw:
    """Two relations to follow before the fact: "Where does the teacher of the friend of Anna live?"."""
    start, middle, end, *others = _people(rng, 5)
    near, far, spare = rng.sample(_RELATIONS, 3)
    links = [(near, start, middle), (far, middle, end), (far, start, others[0]), (spare, end, others[1])]
    make = rng.choice(_SIMPLE)
    facts = {name: make(rng, name) for name in (middle, end, *others)}
    statements = [_link(*link) for link in links] + [fact[0] for fact in facts.values()]
    rng.shuffle(statements)
    text = " ".join(statements)
    found, questions, answer = facts[end]
    question = rng.choice(questions).replace(end, f"the {far} of the {near} of {start}")
    thought = f"{near} of {start}: {middle}; {far} of {middle}: {end}; {found.rstrip('.')}"
    return Draw(_prompts(text, question), answer, text, thought)


def _link(relation: str, person_from: str, person_to: str) -> str:
    return f"The {relation} of {person_from} is {person_to}."


FAMILY = Family("extraction", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})

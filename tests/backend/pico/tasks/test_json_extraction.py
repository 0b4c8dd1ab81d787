"""The JSON family's answers follow from its texts, and its grader compares values."""

from __future__ import annotations

import json
import re
from random import Random

import pytest

from backend.pico.tasks.base import Instance
from backend.pico.tasks.json_extraction import FAMILY


def draw(tier: int) -> list[Instance]:
    rng = Random(f"json:{tier}")
    return [FAMILY.generate(rng, tier) for _ in range(200)]


def sentences_of(name: str, text: str) -> str:
    return " ".join(part for part in re.findall(r"[^.]+\.", text) if re.search(rf"\b{name}\b", part))


@pytest.mark.parametrize("tier", [1, 2, 3])
def test_values_are_in_the_text(tier: int) -> None:
    for instance in draw(tier):
        answer = json.loads(instance.answer)
        assert isinstance(answer, dict)
        assert answer
        name = instance.thought.split(":")[0] if tier == 3 else ""
        text = sentences_of(name, instance.key) if name else instance.key
        assert all(re.search(rf"\b{value}\b", text) for value in answer.values() if value is not None)
        assert (None in answer.values()) <= (tier == 3)


def test_lists_hold_all_people_from_a_to_z() -> None:
    for instance in draw(4):
        people = json.loads(instance.answer)
        names = [person["name"] for person in people]
        assert names == sorted(names)
        for person in people:
            own = sentences_of(person["name"], instance.key)
            values = [value for value in person.values() if value is not None]
            assert all(re.search(rf"\b{value}\b", own) for value in values)
            assert len(values) - 1 == own.count(".")


def test_tier_five_filters_sorts_and_adds_up() -> None:
    kinds: set[str] = set()
    for instance in draw(5):
        answer, text = json.loads(instance.answer), instance.key
        ages = {name: int(age) for name, age in re.findall(r"(\w+) is (\d+) years", text)}
        ages |= {name: int(age) for name, age in re.findall(r"age of (\w+) is (\d+)", text)}
        if isinstance(answer, dict):
            kinds.add("summary")
            assert answer == {"oldest": max(ages, key=lambda name: ages[name]), "total": sum(ages.values())}
        elif limit := re.search(r"(older|younger) than (\d+)", instance.prompt):
            kinds.add("filter")
            bound = int(limit[2])
            hits = [
                name for name, age in ages.items() if (age > bound if limit[1] == "older" else age < bound)
            ]
            assert [person["name"] for person in answer] == sorted(hits)
        else:
            kinds.add("sort")
            assert [person["age"] for person in answer] == sorted(ages.values())
    assert kinds == {"summary", "filter", "sort"}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"name": "Anna", "age": 31}', True),
        ('{"age":31,"name":"Anna"}.', True),
        ('{"name": "Anna", "age": "31"}', False),
        ('{"name": "anna", "age": 31}', False),
        ('{"name": "Anna"}', False),
        ('{"name": "Anna", "age": 31} as asked', False),
        ("", False),
        ("[" * 5000, False),
        ("1" * 5000, False),
    ],
)
def test_grader_compares_json(text: str, right: bool) -> None:
    instance = Instance("json_extraction", 1, "p", '{"name": "Anna", "age": 31}', "k")
    assert FAMILY.grade(instance, text) is right

"""The facts family holds out phrasings of single facts, and joins facts correctly."""

from __future__ import annotations

from random import Random

import pytest

from backend.pico.tasks.base import Instance, split_of
from backend.pico.tasks.fact_table import CONTINENTS, COUNTRIES, OPPOSITES
from backend.pico.tasks.facts import FAMILY, PHRASINGS

CAPITALS = {country.capital: country for country in COUNTRIES}
NAMES = {country.name: country for country in COUNTRIES}


def draw(tier: int, count: int = 600) -> list[Instance]:
    rng = Random(f"facts:{tier}")
    return [FAMILY.generate(rng, tier) for _ in range(count)]


def test_the_table_is_consistent() -> None:
    assert len(NAMES) == len(CAPITALS) == len(COUNTRIES) == 40
    assert {country.continent for country in COUNTRIES} == set(CONTINENTS)
    assert all(OPPOSITES[opposite] == word for word, opposite in OPPOSITES.items())


def test_every_single_fact_is_trained_in_some_phrasings() -> None:
    facts = [(name, "capital continent language currency") for name in NAMES]
    facts += [(capital, "country") for capital in CAPITALS] + [(word, "opposite") for word in OPPOSITES]
    for thing, attributes in facts:
        for attribute in attributes.split():
            keys = [f"{attribute} {thing} {place}" for place in range(len(PHRASINGS[attribute]))]
            splits = [split_of(Instance("facts", 1, "", "", key)) for key in keys]
            assert splits.count("train") >= 3, (thing, attribute)


def test_keys_of_single_facts_name_the_phrasing() -> None:
    for instance in draw(2):
        attribute, place = instance.key.split()[0], int(instance.key.split()[-1])
        thing = instance.thought.split(":")[0]
        assert PHRASINGS[attribute][place].split("{")[0] in instance.prompt
        assert thing in instance.prompt
        if thing in NAMES:
            assert NAMES[thing].value(attribute) == instance.answer


@pytest.mark.parametrize("tier", [4, 5])
def test_joined_facts_are_right(tier: int) -> None:
    found: set[str] = set()
    for instance in draw(tier):
        kind, *rest = instance.key.split()
        found.add(kind)
        if kind == "hops":
            country = CAPITALS[" ".join(rest[:-1])]
            assert instance.answer == country.value(rest[-1])
        elif kind == "same":
            names = (
                instance.key.removeprefix(f"same {rest[0]} ").removeprefix("the countries of ").split(" and ")
            )
            values = {(NAMES.get(name) or CAPITALS[name]).value(rest[0]) for name in names}
            assert instance.answer == ("Yes" if len(values) == 1 else "No")
        elif kind == "count":
            continent = next(c for c in CONTINENTS if f"count {c} " in instance.key)
            names = instance.key.removeprefix(f"count {continent} ").split(", ")
            assert int(instance.answer) == sum(NAMES[name].continent == continent for name in names)
    assert found == ({"hops", "same", "count", "legs"} if tier == 4 else {"same", "cities", "legs"})

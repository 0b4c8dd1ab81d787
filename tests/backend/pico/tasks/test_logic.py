"""The logic family's answers follow from its texts."""

from __future__ import annotations

import re
from random import Random

import pytest

from backend.pico.tasks.base import Instance
from backend.pico.tasks.logic import FAMILY

DRAWS = 300


def draw(tier: int) -> list[Instance]:
    rng = Random(f"logic:{tier}")
    return [FAMILY.generate(rng, tier) for _ in range(DRAWS)]


@pytest.mark.parametrize("tier", [3, 4, 5])
def test_boolean_answers_are_right(tier: int) -> None:
    found = [i for i in draw(tier) if re.fullmatch(r"(?:true|false|and|or|not|[() ])+", i.key)]
    assert len(found) > DRAWS / 20
    for instance in found:
        assert (
            str(eval(instance.key.replace("true", "True").replace("false", "False"))).lower()
            == instance.answer
        )


@pytest.mark.parametrize("tier", [1, 2, 3, 4, 5])
def test_orders_agree_with_every_sentence(tier: int) -> None:
    found = 0
    for instance in draw(tier):
        if "down " not in instance.thought:
            continue
        found += 1
        order = instance.thought.split("down ")[1].split(";")[0].split(" > ")
        for left, scale, right in re.findall(r"(\w+) is (\w+) than (\w+)", instance.key):
            more = scale in ("taller", "older", "faster", "bigger")
            assert (order.index(left) < order.index(right)) == more
        if instance.answer.count(",") > 0:
            assert instance.answer.split(", ") == order
    assert (found > 0) == (tier >= 2)


@pytest.mark.parametrize("tier", [2, 3, 4, 5])
def test_colour_chains_derive_the_answer(tier: int) -> None:
    found: list[str] = []
    for instance in draw(tier):
        rules = re.findall(r"If the (\w+) is (\w+), the (\w+) is (\w+)\.", instance.key)
        if not rules:
            continue
        known = {re.search(r"(?:^|\. )The (\w+) is (\w+)\.", instance.key).groups()}  # type: ignore[union-attr]
        for _ in rules:
            known |= {
                (thing, colour)
                for if_thing, if_colour, thing, colour in rules
                if (if_thing, if_colour) in known
            }
        asked = [
            thing
            for thing, _ in known
            if re.search(rf"\b{thing}\b", instance.prompt.replace(instance.key, ""))
        ]
        colours = {colour for thing, colour in known if thing in asked}
        assert colours == ({instance.answer} if instance.answer != "unknown" else set())
        found.append(instance.answer)
    assert "unknown" in found
    assert len(set(found)) > 3


@pytest.mark.parametrize("tier", [3, 4, 5])
def test_liars_are_consistent(tier: int) -> None:
    found = 0
    for instance in draw(tier):
        states = dict(re.findall(r"(\w+) (true|lies) \d", instance.thought))
        for speaker, subject, claim in re.findall(r"(\w+) says that (\w+) (lies|tells)", instance.key):
            found += 1
            right = (states[subject] == "lies") == (claim == "lies")
            assert right == (states[speaker] == "true")
        if instance.answer.isdigit():
            assert list(states.values()).count("lies") == int(instance.answer)
    assert found > 0

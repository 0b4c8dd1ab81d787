"""The steps of units end with the converted value."""

from __future__ import annotations

import re
from random import Random

import pytest

from backend.pico.tasks.units import FAMILY


@pytest.mark.parametrize("tier", [3, 4, 5])
def test_thoughts_end_with_the_value(tier: int) -> None:
    rng = Random(tier)
    for _ in range(300):
        instance = FAMILY.generate(rng, tier)
        value, _, unit = instance.answer.partition(" ")
        tenths = re.fullmatch(r"(\d+)\*(\d+)", instance.thought)
        if tenths is not None:
            assert int(tenths[1]) * int(tenths[2]) == int(value)
        else:
            last = re.split(r"[;=:]", instance.thought.removesuffix("r0"))[-1]
            assert last == value or re.search(rf"={value}:\d+r0$", instance.thought), instance
        assert unit in instance.prompt or value == "1"


def test_two_steps_down_go_through_the_unit_between() -> None:
    rng = Random(0)
    drawn = (FAMILY.generate(rng, 5) for _ in range(400))
    found = [instance for instance in drawn if instance.key.endswith(">seconds") and "hours" in instance.key]
    assert found
    for instance in found:
        hours, minutes = (int(number) for number in re.findall(r"\d+", instance.key))
        assert int(instance.answer.split(" ")[0]) == hours * 3600 + minutes * 60
        assert str(hours * 60 + minutes) in instance.thought

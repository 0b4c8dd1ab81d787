"""The thoughts of sorting gather the items so that the answer is each group in order."""

from __future__ import annotations

from random import Random

import pytest

from backend.pico.tasks.sorting import FAMILY


@pytest.mark.parametrize("tier", [3, 4, 5])
def test_groups_put_in_order_are_the_answer(tier: int) -> None:
    rng = Random(tier)
    for _ in range(200):
        instance = FAMILY.generate(rng, tier)
        kind, _, text = instance.thought.partition(": ")
        groups = [group.split(" ") for group in text.split("; ")]
        if kind == "letters":
            ordered = [word for group in groups for word in sorted(group)]
        else:
            ordered = [
                number for group in groups for number in sorted(group, key=int, reverse=kind == "down")
            ]
        assert ", ".join(ordered) == instance.answer


def test_short_lists_only_name_the_direction() -> None:
    rng = Random(0)
    assert {FAMILY.generate(rng, tier).thought for tier in (1, 2) for _ in range(50)} == {"up", "down"}

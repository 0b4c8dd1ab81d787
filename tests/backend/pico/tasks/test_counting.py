"""The steps of counting go through every item and end with the answer."""

from __future__ import annotations

from random import Random

import pytest

from backend.pico.tasks.counting import FAMILY


@pytest.mark.parametrize("tier", [3, 4, 5])
def test_hits_are_numbered_and_the_total_is_the_answer(tier: int) -> None:
    rng = Random(tier)
    for _ in range(200):
        instance = FAMILY.generate(rng, tier)
        items, _, total = instance.thought.split(": ", 1)[1].rpartition("; ")
        counts = [int(item.split(":")[1]) for item in items.split(" ") if ":" in item]
        assert counts == list(range(1, int(total) + 1))
        assert total == instance.answer


def test_numbers_of_the_asked_parity_are_the_hits() -> None:
    rng = Random(0)
    for _ in range(100):
        kind, _, items = FAMILY.generate(rng, 4).thought.partition("; ")[0].partition(": ")
        for item in items.split(" "):
            assert (":" in item) == (int(item.split(":")[0]) % 2 == (kind == "odd"))

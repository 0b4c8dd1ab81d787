"""The thoughts of counting go through every item and end with the answer."""

from __future__ import annotations

import re
from random import Random

import pytest

from backend.pico.tasks.counting import FAMILY


@pytest.mark.parametrize("tier", [3, 4, 5])
def test_the_last_running_count_is_the_answer(tier: int) -> None:
    rng = Random(tier)
    for _ in range(200):
        instance = FAMILY.generate(rng, tier)
        counts = [int(step[-1]) for step in instance.thought.split(": ", 1)[1].split(" ")]
        assert str(counts[-1]) == instance.answer
        assert all(later - earlier in (0, 1) for earlier, later in zip([0, *counts], counts, strict=False))


def test_even_numbers_raise_the_count() -> None:
    rng = Random(0)
    for _ in range(100):
        thought = FAMILY.generate(rng, 4).thought
        before, odd = 0, thought.startswith("odd")
        for number, count in re.findall(r"(\d+):(\d+)", thought):
            assert int(count) - before == (int(number) % 2 == odd)
            before = int(count)

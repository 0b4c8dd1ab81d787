"""The steps of sorting are an insertion sort."""

from __future__ import annotations

from random import Random

import pytest

from backend.pico.tasks.sorting import FAMILY


@pytest.mark.parametrize("tier", [1, 2, 3, 4, 5])
def test_each_step_inserts_one_item_and_the_last_is_the_answer(tier: int) -> None:
    rng = Random(tier)
    for _ in range(200):
        instance = FAMILY.generate(rng, tier)
        kind, *steps = instance.thought.split(";")
        before: list[str] = []
        for step in steps:
            item, _, listed = step.strip().partition(":")
            after = listed.split() if kind == "letters" else listed.split(",")
            assert sorted(after) == sorted([*before, item])
            assert [word for word in after if word != item] == before
            before = after
        assert ", ".join(before) == instance.answer
        ordered = sorted(before) if kind == "letters" else sorted(before, key=int, reverse=kind == "down")
        assert before == ordered

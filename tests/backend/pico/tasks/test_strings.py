"""The steps of strings spell, number and mark what the answer needs."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Instance
from backend.pico.tasks.strings import FAMILY


def draw(tier: int, key: str) -> list[Instance]:
    rng = Random(tier)
    drawn = [FAMILY.generate(rng, tier) for _ in range(400)]
    found = [instance for instance in drawn if instance.key.startswith(key)]
    assert len(found) > 20
    return found


def test_duplicates_are_marked() -> None:
    for instance in draw(3, "unique"):
        kept = [
            item[:-1] for item in instance.thought.removeprefix("once: ").split(" ") if item.endswith("+")
        ]
        assert ", ".join(kept) == instance.answer


def test_long_reversals_are_numbered() -> None:
    for instance in draw(3, "reverse"):
        letters = instance.thought.split(" ")[1::2]
        assert " ".join(reversed(letters)) == instance.answer


def test_spelled_words_are_the_answer_with_other_marks() -> None:
    for instance in draw(4, "spell"):
        assert instance.thought.replace("; ", "/").replace(" ", "-").replace("/", " ") == instance.answer
    for instance in draw(4, "upper"):
        assert instance.thought.replace(" ", "").replace(";", " ").upper() == instance.answer


def test_words_are_spelled_forwards_then_backwards() -> None:
    for instance in draw(5, "backwards"):
        halves = [part.replace(" ", "").split("-") for part in instance.thought.split("; ")]
        assert all(there == back[::-1] for there, back in halves)
        assert " ".join(back for _, back in halves) == instance.answer

from __future__ import annotations

from random import Random

from cache.classifiers.questions import time_questions


def test_questions_are_filled_reproducible_and_of_both_kinds() -> None:
    made = list(time_questions(Random(0), 2))
    assert made == list(time_questions(Random(0), 2))
    assert not any("{" in text for text, _ in made)
    share = sum(changes for _, changes in made) / len(made)
    assert 0.35 < share < 0.65

"""Small talk names the family, and answers the task that it surrounds."""

from __future__ import annotations

import re
from random import Random

import pytest

from backend.pico.tasks import FAMILIES, Instance, smalltalk, split_of


def test_no_answer_names_one_member_of_the_family() -> None:
    assert smalltalk.ANSWERS["identity"].startswith("I am pico, ")
    assert not any("pico-" in answer for answer in smalltalk.ANSWERS.values())


@pytest.mark.parametrize("tier", [4, 5])
def test_a_surrounded_task_stays_in_its_split(tier: int) -> None:
    rng = Random(tier)
    found = [FAMILIES["smalltalk"].generate(rng, tier) for _ in range(200)]
    sums = [(one, re.search(r"What is (\d+) \+ (\d+)\?", one.prompt)) for one in found]
    assert any(match for _, match in sums)
    for instance, match in sums:
        if match:
            task = Instance("arithmetic", 1, "", "", f"{match[1]}+{match[2]}")
            assert split_of(task) == split_of(instance)
            assert instance.answer.endswith(str(int(match[1]) + int(match[2])))


def test_punctuation_is_free_but_the_decimal_point_counts() -> None:
    assert smalltalk.grade("Hello! How can I help you?", "hello how can I help you")
    assert smalltalk.grade("I am fine, thank you. 3.5", "I am fine, thank you: 3.5.") is False
    assert smalltalk.grade("I am fine, thank you. 3.5", "I am fine thank you 3.5.")
    assert not smalltalk.grade("3.5", "35")

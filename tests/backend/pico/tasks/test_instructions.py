"""The grader of instructions checks the required form."""

from __future__ import annotations

from random import Random

import pytest

from backend.pico.tasks.base import Instance
from backend.pico.tasks.instructions import FAMILY

OPEN = Instance(
    "instructions", 2, "List 2 fruits separated by slashes.", "apple / pear", "plain slashes open fruit 2"
)
SHOUTED = Instance("instructions", 3, "Write ...", "DOG\nCAT", "upper lines dog, cat")
WORD = Instance("instructions", 1, "Answer in one word ...", "plum", "plain word fruit of plum, dog")


@pytest.mark.parametrize("text", ["apple / pear", "kiwi / fig", "Kiwi / Fig."])
def test_an_open_list_accepts_other_items_in_the_demanded_form(text: str) -> None:
    assert FAMILY.grade(OPEN, text)


@pytest.mark.parametrize(
    "text", ["kiwi, fig", "kiwi / kiwi", "kiwi / dog", "kiwi / fig / lime", "kiwi", "fruits: a / b"]
)
def test_an_open_list_rejects_another_form_or_other_items(text: str) -> None:
    assert not FAMILY.grade(OPEN, text)


def test_capitals_and_lines_count_where_required() -> None:
    assert FAMILY.grade(SHOUTED, "DOG \nCAT\n")
    assert not FAMILY.grade(SHOUTED, "dog\ncat")
    assert not FAMILY.grade(SHOUTED, "DOG CAT")
    assert FAMILY.grade(WORD, "Plum.")


@pytest.mark.parametrize("tier", [2, 3, 4, 5])
def test_a_system_message_may_require_the_form(tier: int) -> None:
    rng = Random(tier)
    found = [FAMILY.generate(rng, tier) for _ in range(60)]
    assert any(instance.context.system for instance in found)
    assert any(not instance.context.system for instance in found)


@pytest.mark.parametrize("tier", [4, 5])
def test_the_steps_have_the_items_in_the_order_of_the_answer(tier: int) -> None:
    rng = Random(tier)
    for _ in range(100):
        instance = FAMILY.generate(rng, tier)
        words = [word.strip("-. 0123456789") for word in instance.answer.replace("/", " ").split()]
        last = words[-1].strip(",;")
        assert last in instance.thought

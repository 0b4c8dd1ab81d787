"""Every behaviour accepts its own answers to the curriculum and rejects plain ones."""

from __future__ import annotations

from random import Random

import pytest

from backend.pico.adapters.behaviours import BEHAVIOURS, Behaviour, transform
from backend.pico.adapters.specs import TAUGHT_FAMILIES
from backend.pico.tasks import FAMILIES, Instance
from backend.pico.tasks.base import Context, Turn


def drawn(tiers: tuple[int, ...]) -> list[Instance]:
    rng = Random(5)
    return [
        FAMILIES[name].generate(rng, tier) for name in TAUGHT_FAMILIES for tier in tiers for _ in range(12)
    ]


@pytest.mark.parametrize("behaviour", BEHAVIOURS.values(), ids=lambda found: found.name)
def test_accepts_its_own_answers_and_rejects_plain_ones(behaviour: Behaviour) -> None:
    changed = 0
    for instance in drawn((1, 2, 3)):
        answer = transform(behaviour, instance).answer
        assert behaviour.follows(instance, answer), answer
        assert behaviour.right(instance, answer), answer
        if behaviour.applies(instance):
            changed += 1
            assert not behaviour.follows(instance, instance.answer)
            assert not behaviour.right(instance, instance.answer)
    assert changed > 15


@pytest.mark.parametrize("behaviour", BEHAVIOURS.values(), ids=lambda found: found.name)
def test_another_answer_in_the_same_form_is_not_right(behaviour: Behaviour) -> None:
    instance = Instance("units", 1, "What is 2 km in m?", "2000 m", "k")
    wrong = behaviour.rewrite("2001 m")
    assert behaviour.follows(instance, wrong)
    assert not behaviour.right(instance, wrong)


def test_earlier_answers_are_rewritten_and_questions_are_not() -> None:
    turns = (Turn("user", "What is 6 + 1?"), Turn("assistant", "7"))
    instance = Instance("references", 1, "And twice that?", "14", "k", context=Context("", turns))
    found = transform(BEHAVIOURS["json"], instance)
    assert [turn.content for turn in found.context.turns] == ["What is 6 + 1?", '{"answer": 7}']
    assert (found.prompt, found.answer, found.key) == ("And twice that?", '{"answer": 14}', "k")

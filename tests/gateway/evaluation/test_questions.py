"""Questions are distinct, of the test split, and the same for the same seed."""

from __future__ import annotations

from random import Random

import pytest

from backend.pico.tasks import FAMILIES, Family, Instance, split_of
from backend.pico.tasks.base import Context, Draw, Tool, Turn
from gateway.evaluation import questions
from gateway.evaluation.questions import draw_questions, request_fields


def test_same_seed_same_questions_of_the_test_split() -> None:
    drawn = draw_questions(["sorting", "arithmetic"], [1, 3], 4, seed=7)
    assert drawn == draw_questions(["arithmetic", "sorting"], [3, 1], 4, seed=7)
    assert drawn != draw_questions(["arithmetic", "sorting"], [3, 1], 4, seed=8)
    assert {split_of(question) for question in drawn} == {"test"}
    assert len({question.prompt for question in drawn}) == len(drawn) == 16
    order = list(FAMILIES)
    assert [order.index(q.family) for q in drawn] == sorted(order.index(q.family) for q in drawn)


def test_fewer_when_a_tier_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(rng: Random) -> Draw:
        number = str(rng.randrange(50))
        return Draw([f"Say {number}."], number, number)

    monkeypatch.setattr(questions, "FAMILIES", {"tiny": Family("tiny", {1: draw})})
    in_test = [n for n in range(50) if split_of(Instance("tiny", 1, "", "", str(n))) == "test"]
    drawn = draw_questions(["tiny"], [1, 2], 50, seed=0)
    assert sorted(int(question.answer) for question in drawn) == in_test


def test_request_holds_everything_but_the_answer() -> None:
    context = Context(
        system="Be brief.",
        turns=(Turn("user", "hi"), Turn("assistant", "Hello!")),
        tools=(Tool("calculator", "Computes.", (("expression", "string"),)),),
    )
    fields = request_fields(Instance("tools", 1, "What is 1 + 1?", "secret", "k", "steps", context))
    assert [message["role"] for message in fields["messages"]] == ["system", "user", "assistant", "user"]
    assert fields["tools"][0]["function"]["name"] == "calculator"
    assert "secret" not in str(fields) and "steps" not in str(fields)
    assert set(request_fields(Instance("arithmetic", 1, "What is 1 + 1?", "2", "k"))) == {"messages"}

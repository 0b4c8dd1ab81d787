"""Ratios of a route to always asking one model, question by question."""

from __future__ import annotations

import pytest

from gateway.evaluation.route.compare import Pair, by_family, ratios, seconds_of
from gateway.evaluation.route.machine import Work


def pairs(count: int) -> list[Pair]:
    """Every second question is answered at a third of the cost, every tenth wrong by the route alone."""
    return [Pair("ab"[n % 2], n % 10 != 0, n % 20 != 19, 1.0 if n % 2 else 3.0, 3.0) for n in range(count)]


def test_equal_answers_have_no_interval() -> None:
    same = [Pair("a", n % 3 == 0, n % 3 == 0, 2.0, 2.0) for n in range(60)]
    assert ratios(same) == {"accuracy": [1.0, 1.0, 1.0], "cost": [1.0, 1.0, 1.0]}


def test_more_questions_make_intervals_narrow() -> None:
    few, many = ratios(pairs(100)), ratios(pairs(2_500))
    for found in (few, many):
        assert found["cost"][0] == pytest.approx(2 / 3, abs=1e-3)
        assert found["accuracy"][0] == pytest.approx(0.9 / 0.95, abs=1e-3)
        for value, low, high in found.values():
            assert low < value < high
    width = {name: [each[name][2] - each[name][1] for each in (few, many)] for name in few}
    assert all(large < small / 3 for small, large in width.values())


def test_families_are_told_apart() -> None:
    found = by_family(pairs(100))
    assert found["a"] == {"questions": 50, "route": 0.8, "strong": 1.0, "cost": 1.0}
    assert found["b"] == {
        "questions": 50,
        "route": 1.0,
        "strong": 0.9,
        "cost": 0.3333,
    }


def test_tokens_cost_what_they_take_their_engine() -> None:
    work = {"a": Work(9.0, 10.0), "b": Work(9.0, 5.0), "encoder": Work(1.0, 1.0)}
    assert seconds_of(work, {"a": 0.1, "b": 0.4}) == pytest.approx(3.0)

"""Conditions are checked when they are compiled, and their errors say where and what was meant."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from policies.conditions import Condition, ConditionError, Fault, activation
from policies.variables import MAPS, VARIABLES


@pytest.mark.parametrize(
    ("source", "line", "column", "message"),
    [
        ("request.num_mesages > 2", 1, 1, "unknown name 'request.num_mesages'; did you mean 'request.num_"),
        ("true && model == 'a'", 1, 9, "unknown name 'model'; did you mean 'request.model'?"),
        ("request.model.startWith('a')", 1, 24, "unknown name 'startWith'; did you mean 'startsWith'?"),
        ("request.stream &&\n  request.num_messages > 'a'", 2, 24, "'>' is not defined for (int, string)"),
        ("request.num_messages > 2.5", 1, 22, "'>' is not defined for (int, double)"),
        ("1 +", 1, 4, "is not valid CEL: it ends where a value is expected"),
        ("request.model", 1, 1, "a condition must give a bool, not a value of type string"),
        ("request.model.matches('(a')", 1, 23, "invalid regular expression: missing )"),
        ("true || headers[request.model] == 'a'", 1, 9, "headers is used without a literal key"),
        ("'x' in request.metadata", 1, 8, "request.metadata is used without a literal key"),
    ],
)  # fmt: skip
def test_each_class_of_errors_names_its_place(source: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ConditionError) as caught:
        Condition(source)
    (fault,) = caught.value.faults
    assert (fault.line, fault.column) == (line, column)
    assert fault.message.startswith(message)


def test_all_unknown_names_are_reported() -> None:
    with pytest.raises(ConditionError) as caught:
        Condition("rquest.model == 'a' || request.modle == 'b'")
    assert [fault.column for fault in caught.value.faults] == [1, 24]


def test_an_unlike_name_lists_the_variables() -> None:
    with pytest.raises(ConditionError, match="known: request.model, request.endpoint"):
        Condition("zzzzz == 1")


def test_what_a_condition_refers_to() -> None:
    condition = Condition(
        "headers['x-a'] == 'request.stream' && request . num_messages > 1 && headers[\"b\"] != ''"
    )
    assert condition.names == {"headers", "request.num_messages"}
    assert condition.keys == {("headers", "x-a"), ("headers", "b")}
    assert condition.constant is None


@pytest.mark.parametrize(("source", "value"), [("true", True), ("1 > 2", False), ("1 / 0 == 1", None)])
def test_constants_are_known(source: str, value: bool | None) -> None:
    assert Condition(source).constant is value


def test_evaluation_and_the_values_it_used() -> None:
    condition = Condition("request.num_messages > 2 && headers['x-region'] == 'eu'")
    facts = {"request.num_messages": 3, "headers": {"x-region": "eu"}}
    assert condition.holds(activation(facts)) is True
    assert condition.shown(facts) == {"request.num_messages": 3, "headers['x-region']": "eu"}
    assert condition.holds(activation({**facts, "request.num_messages": 2})) is False


def test_what_cannot_be_evaluated_is_neither_true_nor_false() -> None:
    condition = Condition("1 / request.max_tokens > 0")
    assert condition.holds(activation({"request.max_tokens": 0})) is None


def test_time_zones() -> None:
    condition = Condition("time.getHours('Europe/Berlin') == 20")
    assert condition.holds(activation({"time": datetime(2026, 1, 1, 19, 30, tzinfo=UTC)})) is True


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_every_variable_can_be_used(name: str) -> None:
    shown = f"{name}['a']" if name in MAPS else name
    assert Condition(f"{shown} == {shown}").names == {name}


def test_faults_have_a_place_by_default() -> None:
    assert (Fault("x").line, Fault("x").column) == (1, 1)


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        ("request.model == 'x'", {"request.model": "\ud800"}),
        ("headers['x-a'] == 'x'", {"headers": {"x-a": "\udcff"}}),
        (
            "L.all(a, L.all(b, L.all(c, a + b + c > 0))) && request.model == ''".replace(
                "L", f"[{', '.join(['1'] * 150)}]"
            ),
            {"request.model": ""},
        ),
    ],
)
def test_what_cel_gives_up_on_cannot_be_evaluated(source: str, facts: dict[str, object]) -> None:
    """cel-cpp raises then: text that is not Unicode, too many iterations."""
    assert Condition(source).holds(activation(facts)) is None

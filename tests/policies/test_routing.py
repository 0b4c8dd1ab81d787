"""The first rule that matches decides; rules without a destination add their changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conditions import Condition
from policies.document import Policies
from policies.routes import Refusal, Route, RoutingSection, Rule
from policies.routing import GROUP, Routing, SignalsNeeded

REFUSAL = Refusal(message="No.")


def routing(rules: list[Rule], *, before: list[Rule] | None = None, **route: object) -> Routing:
    routes = {"auto": Route(rules=rules, **route)}  # type: ignore[arg-type]
    return Routing(Policies(routes=routes, routing=RoutingSection(rules=before or [])))


def test_a_simple_route_needs_no_facts() -> None:
    choice = routing([], model="small").decide("auto", {})
    assert choice.action is not None and choice.action.model == "small"
    assert (choice.route, choice.rule, choice.reason) == ("auto", "default", "route auto, default")


def test_a_model_is_not_a_route() -> None:
    choice = routing([], model="small").decide("large", {})
    assert choice.action is None and choice.reason == "requested" and choice.route == ""


def test_rules_are_tried_in_order() -> None:
    rules = [
        Rule(when="request.num_messages > 9", model="a"),
        Rule(when="request.num_messages > 4", model="b", name="long"),
    ]
    decide = routing(rules, model="c")
    found = [decide.decide("auto", {"request.num_messages": n}) for n in (10, 5, 1)]
    assert [choice.action.model for choice in found if choice.action] == ["a", "b", "c"]
    assert found[1].reason == "route auto, rule 2 (long)" and found[1].rule_name == "long"


def test_rules_without_destination_add_changes() -> None:
    rules = [Rule(system="one"), Rule(when="request.stream", system="two"), Rule(system="three", model="a")]
    decide = routing(rules)
    choice = decide.decide("auto", {"request.stream": False})
    assert [change.system for change in choice.changes] == ["one", "three"]


def test_a_routes_changes_hold_for_its_rules_and_come_first() -> None:
    rules = [Rule(when="request.stream", system="rule", model="a")]
    decide = routing(rules, system="route", model="b")
    found = [decide.decide("auto", {"request.stream": value}).changes for value in (True, False)]
    assert [[each.system for each in changes if each.system] for changes in found] == [
        ["route", "rule"],
        ["route"],
    ]


def test_rules_before_all_routes_apply_to_models_too() -> None:
    before = [Rule(when="tenant.tier == 'free' && request.model == 'large'", refuse=REFUSAL)]
    decide = routing([], before=before, model="small")
    facts = {"tenant.tier": "free", "request.model": "large"}
    choice = decide.decide("large", facts)
    assert choice.action is not None and choice.action.refuse is REFUSAL
    assert choice.reason == "routing.rules rule 1"
    assert decide.decide("auto", {**facts, "request.model": "auto"}).rule == "default"


def test_a_condition_that_cannot_be_evaluated_refuses_but_never_admits() -> None:
    broken = "1 / request.max_tokens > 0"
    facts = {"request.max_tokens": 0}
    assert routing([Rule(when=broken, model="a")], model="b").decide("auto", facts).rule == "default"
    refusing = routing([Rule(when=broken, refuse=REFUSAL)], model="b").decide("auto", facts)
    assert refusing.action is not None and refusing.action.refuse is REFUSAL


def test_what_was_tried_is_kept_on_request() -> None:
    rules = [Rule(when="request.num_messages > 9", model="a"), Rule(when="request.stream", model="b")]
    facts = {"request.num_messages": 2, "request.stream": True}
    tried = routing(rules, model="c").decide("auto", facts, keep_tried=True).tried
    assert [(each.rule, each.matched, each.values) for each in tried] == [
        ("rule 1", False, {"request.num_messages": 2}),
        ("rule 2", True, {"request.stream": True}),
    ]


def test_only_names_in_conditions_are_needed() -> None:
    decide = routing([Rule(when="headers['x-a'] == '' && request.stream", model="a")], model="b")
    assert decide.conditions("auto") == ({"headers", "request.stream"}, {("headers", "x-a")})
    assert decide.conditions("other") == (frozenset(), frozenset())


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 20))
def test_the_first_match_wins(bounds: list[int], value: int) -> None:
    rules = [Rule(when=f"request.num_messages > {n}", model=f"m{i}") for i, n in enumerate(bounds)]
    choice = routing(rules, model="none").decide("auto", {"request.num_messages": value})
    expected = next((f"m{i}" for i, n in enumerate(bounds) if value > n), "none")
    assert choice.action is not None and choice.action.model == expected


def test_signals_are_asked_for_when_a_rule_that_needs_them_is_tried() -> None:
    rules = [
        Rule(when="request.stream", model="a"),
        Rule(when="signals.has_code && signals.similarity['x'] > 0.5", model="b"),
    ]
    decide = routing(rules, model="c")
    assert decide.conditions("auto") == ({"request.stream"}, set())
    assert decide.decide("auto", {"request.stream": True}).reason == "route auto, rule 1"
    with pytest.raises(SignalsNeeded) as needed:
        decide.decide("auto", {"request.stream": False})
    assert needed.value.names == {"signals.has_code", "signals.similarity"}
    assert needed.value.keys == {("signals.similarity", "x")}
    facts = {"request.stream": False, "signals.has_code": True, "signals.similarity": {"x": 0.6}}
    assert decide.decide("auto", facts).reason == "route auto, rule 2"


@given(st.lists(st.sampled_from(["a", "b", "e", "s", "-", "r"]), max_size=90), st.integers(0, 3))
def test_groups_of_rules_decide_as_each_rule_alone(kinds: list[str], messages: int) -> None:
    """e: a condition that cannot be evaluated; s: of signals; -: without destination; r: refuses."""
    when = {
        "a": "request.num_messages == 1",
        "b": "request.num_messages == 2",
        "e": "1 / (request.num_messages - 3) > 7",
        "s": "signals.has_code && request.num_messages == 3",
        "-": "request.num_messages == 1",
        "r": "10 / (request.num_messages - 3) > 70",
    }
    rules = []
    for number, kind in enumerate(kinds):
        what: dict[str, object] = {"model": f"m{number}"}
        if kind == "-":
            what = {"system": f"s{number}"}
        elif kind == "r":
            what = {"refuse": REFUSAL}
        rules.append(Rule(when=when[kind], **what))  # type: ignore[arg-type]
    decide = routing(rules, model="last")
    facts = {"request.num_messages": messages, "signals.has_code": True}
    fast, slow = (decide.decide("auto", facts, keep_tried=tried) for tried in (False, True))
    assert (fast.rule, fast.action, fast.changes) == (slow.rule, slow.action, slow.changes)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The conditions that have been evaluated, a group's as one."""
    found: list[str] = []
    holds = Condition.holds

    def noted(self: Condition, values: object) -> bool | None:
        found.append(self.source)
        return holds(self, values)

    monkeypatch.setattr(Condition, "holds", noted)
    return found


def on_messages(count: int) -> list[Rule]:
    """Rules for 1 to `count` messages."""
    return [Rule(when=f"request.num_messages == {n}", model=f"m{n}") for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("num_rules", "sizes"),
    [(1, [1]), (2, [2]), (GROUP, [GROUP]), (GROUP + 1, [GROUP, 1]), (2 * GROUP + 3, [GROUP, GROUP, 3])],
)
def test_rules_of_which_none_matches_are_evaluated_by_groups(
    evaluated: list[str], num_rules: int, sizes: list[int]
) -> None:
    choice = routing(on_messages(num_rules), model="none").decide("auto", {"request.num_messages": 0})
    assert choice.rule == "default"
    assert [condition.count("==") for condition in evaluated] == sizes


def test_a_rule_that_always_matches_divides_groups(evaluated: list[str]) -> None:
    rules = [*on_messages(3), Rule(system="always"), *on_messages(4)]
    choice = routing(rules, model="none").decide("auto", {"request.num_messages": 0})
    assert [change.system for change in choice.changes if change.system] == ["always"]
    assert [condition.count("==") for condition in evaluated] == [3, 4]


def test_the_rules_of_a_group_that_matches_are_tried_in_order(evaluated: list[str]) -> None:
    decide = routing(on_messages(GROUP + 5), model="none")
    for number in (1, GROUP, GROUP + 1, GROUP + 5):
        evaluated.clear()
        assert decide.decide("auto", {"request.num_messages": number}).rule == f"rule {number}"
        tried = [condition for condition in evaluated if condition.count("==") == 1]
        assert len(tried) == (number - 1) % GROUP + 1

"""Which rule decides about a request: the compiled routes of one version of the policies. Pure and fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.conditions import Condition, activation
from policies.document import Policies
from policies.routes import CHANGES, DESTINATIONS, Action, Route, Rule

ALL_REQUESTS = "routing.rules"
"""In explanations, the place of the rules that precede every route."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rule that was tried, and with which values. `matched` None: its condition could not be evaluated."""

    rule: str
    condition: str
    matched: bool | None
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the rules say about one request. Without an `action` the model that it names answers."""

    route: str  # "" when the request names a model
    rule: str = ""  # the one that decided, as "rule 2"; "default": the route's own action
    rule_name: str = ""  # the name that its author gave it
    action: Action | None = None
    changes: tuple[Action, ...] = ()  # of the route, of rules without a destination, and of `action`
    tried: Sequence[Outcome] = ()  # only when asked for

    @property
    def reason(self) -> str:
        """Why, in a few words."""
        if self.action is None:
            return "requested"
        where = f"route {self.route}, " if self.route else ""
        return f"{where}{self.rule}" + (f" ({self.rule_name})" if self.rule_name else "")


@dataclass(frozen=True, slots=True)
class _CompiledRule:
    label: str
    name: str
    action: Action
    condition: Condition | None


@dataclass(frozen=True, slots=True)
class _CompiledRoute:
    name: str
    rules: tuple[_CompiledRule, ...]
    names: frozenset[str]  # variables of the conditions
    keys: frozenset[tuple[str, str]]  # (variable, key) of the conditions


class Routing:
    """All routes, with the rules that precede them."""

    def __init__(self, policies: Policies) -> None:
        self.section = policies.routing
        before = _compile(policies.routing.rules, f"{ALL_REQUESTS} ")
        self._routes = {name: _route(name, before, route) for name, route in policies.routes.items()}
        self._others = _route("", before, None)

    def conditions(self, name: str) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
        """The variables, and (variable, key) pairs, that the rules for this requested name refer to."""
        route = self._routes.get(name, self._others)
        return route.names, route.keys

    def decide(self, name: str, facts: Mapping[str, Any], *, keep_tried: bool = False) -> Choice:
        """The first rule that matches a request for `name`.

        `facts` has a value for each of `conditions(name)`. A condition that cannot be evaluated does not
        match, except that of a refusal, which does: it must not be passed by provoking an error.
        """
        route = self._routes.get(name, self._others)
        values = activation(facts) if route.names else None
        changes: list[Action] = []
        tried: list[Outcome] = []
        for rule in route.rules:
            condition = rule.condition
            matched = True if condition is None else condition.holds(values)
            if keep_tried and rule.label:
                shown = {} if condition is None else condition.shown(facts)
                tried.append(
                    Outcome(rule.label, "" if condition is None else condition.source, matched, shown)
                )
            if not (matched or (matched is None and rule.action.refuse is not None)):
                continue
            if rule.action.destination:
                return _choice(route.name, rule, changes, tried)
            changes.append(rule.action)
        return Choice(route.name, changes=tuple(changes), tried=tried)


def _choice(
    route: str, rule: _CompiledRule, changes: Sequence[Action], tried: Sequence[Outcome] = ()
) -> Choice:
    return Choice(route, rule.label, rule.name, rule.action, (*changes, rule.action), tried)


def _route(name: str, before: Sequence[_CompiledRule], route: Route | None) -> _CompiledRoute:
    rules = [*before]
    if route is not None:
        changes = Action(**{field: getattr(route, field) for field in CHANGES})
        own = Action(**{field: getattr(route, field) for field in DESTINATIONS})
        rules += [] if changes == Action() else [_CompiledRule("", "", changes, None)]
        rules += _compile(route.rules, "")
        rules += [_CompiledRule("default", "", own, None)] if own.destination else []
    conditions = [rule.condition for rule in rules if rule.condition is not None]
    names = frozenset(name for condition in conditions for name in condition.names)
    return _CompiledRoute(name, tuple(rules), names, frozenset(k for c in conditions for k in c.keys))


def _compile(rules: Sequence[Rule], prefix: str) -> list[_CompiledRule]:
    return [
        _CompiledRule(
            f"{prefix}rule {number}",
            rule.name,
            rule,
            None if rule.when is None else Condition(rule.when),
        )
        for number, rule in enumerate(rules, 1)
    ]

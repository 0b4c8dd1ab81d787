"""Which rule decides about a request: the compiled routes of one version of the policies. Pure and fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from policies.conditions import Condition, activation
from policies.document import Policies
from policies.retries import DEFAULT_RETRY, Hedge, Retry
from policies.routes import CHANGES, DESTINATIONS, Action, Route, Rule
from policies.variables import SIGNALS

ALL_REQUESTS = "routing.rules"
"""In explanations, the place of the rules that precede every route."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rule that was tried, and with which values. `matched` None: its condition could not be evaluated."""

    rule: str
    condition: str
    matched: bool | None
    values: Mapping[str, object]


class Choice(msgspec.Struct, frozen=True):
    """What the rules say about one request. Without an `action` the model that it names answers."""

    route: str  # "" when the request names a model
    rule: str = ""  # the one that decided, as "rule 2"; "default": the route's own action
    rule_name: str = ""  # the name that its author gave it
    action: Action | None = None
    place: str = ""  # of the action, as `Policies.actions` names it
    changes: tuple[Action, ...] = ()  # of the route, of rules without a destination, and of `action`
    tried: Sequence[Outcome] = ()  # only when asked for

    @property
    def retry(self) -> Retry:
        """What the last change says that has a `retry`, else the defaults."""
        found = (change.retry for change in reversed(self.changes) if change.retry is not None)
        return next(found, DEFAULT_RETRY)

    @property
    def hedge(self) -> Hedge | None:
        """What the last change says that has a `hedge`."""
        return next((change.hedge for change in reversed(self.changes) if change.hedge is not None), None)

    @property
    def reason(self) -> str:
        """Why, in a few words."""
        if self.action is None:
            return "requested"
        where = f"route {self.route}, " if self.route else ""
        return f"{where}{self.rule}" + (f" ({self.rule_name})" if self.rule_name else "")


Names = frozenset[str]
"""Variables of conditions."""
Keys = frozenset[tuple[str, str]]
"""(variable, key) pairs of conditions."""


class SignalsNeeded(Exception):
    """A rule is tried that refers to signals which the facts lack: decide again with all of the route's."""

    def __init__(self, names: Names, keys: Keys) -> None:
        self.names = names
        self.keys = keys
        super().__init__(", ".join(sorted(names)))


@dataclass(frozen=True, slots=True)
class _CompiledRule:
    label: str
    name: str
    action: Action
    place: str
    condition: Condition | None
    signals: Names


@dataclass(frozen=True, slots=True)
class _CompiledRoute:
    name: str
    rules: tuple[_CompiledRule, ...]
    names: Names
    keys: Keys
    signals: Names
    signal_keys: Keys
    groups: Mapping[int, tuple[int, Condition]]
    """By the first rule's number: the number after the last one, and whether any of them matches.

    To evaluate many conditions as one takes a tenth of the time, and mostly none matches.
    """


GROUP = 32
"""Most rules of a group."""


class Routing:
    """All routes, with the rules that precede them."""

    def __init__(self, policies: Policies) -> None:
        self.section = policies.routing
        before = _compile(policies.routing.rules, ALL_REQUESTS, f"{ALL_REQUESTS} ")
        self._routes = {name: _route(name, before, route) for name, route in policies.routes.items()}
        self._others = _route("", before, None)

    def conditions(self, name: str) -> tuple[Names, Keys]:
        """What the rules for this requested name refer to, without signals."""
        route = self._routes.get(name, self._others)
        return route.names, route.keys

    def decide(self, name: str, facts: Mapping[str, Any], *, keep_tried: bool = False) -> Choice:
        """The first rule that matches a request for `name`.

        `facts` has a value for each of `conditions(name)`. A condition that cannot be evaluated does not
        match, except that of a refusal, which does: it must not be passed by provoking an error. Raises
        SignalsNeeded.
        """
        route = self._routes.get(name, self._others)
        values = activation(facts) if facts else None
        changes: list[Action] = []
        tried: list[Outcome] = []
        number = 0
        while number < len(route.rules):
            rule, group = route.rules[number], route.groups.get(number)
            if group is not None and not keep_tried and group[1].holds(values) is False:
                number = group[0]
                continue
            number += 1
            condition = rule.condition
            if rule.signals and not rule.signals <= facts.keys():
                raise SignalsNeeded(route.signals, route.signal_keys)
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
    changes = (*changes, rule.action)
    return Choice(route, rule.label, rule.name, rule.action, rule.place, changes, tried)


def _route(name: str, before: Sequence[_CompiledRule], route: Route | None) -> _CompiledRoute:
    rules = [*before]
    if route is not None:
        place = f"routes.{name}"
        changes = Action(**{field: getattr(route, field) for field in CHANGES})
        own = Action(**{field: getattr(route, field) for field in DESTINATIONS})
        rules += [] if changes == Action() else [_CompiledRule("", "", changes, place, None, Names())]
        rules += _compile(route.rules, f"{place}.rules")
        rules += [_CompiledRule("default", "", own, place, None, Names())] if own.destination else []
    conditions = [rule.condition for rule in rules if rule.condition is not None]
    names = Names(name for condition in conditions for name in condition.names)
    keys = Keys(key for condition in conditions for key in condition.keys)
    signals, signal_keys = _signals(names), Keys(key for key in keys if key[0].startswith(SIGNALS))
    return _CompiledRoute(
        name, tuple(rules), names - signals, keys - signal_keys, signals, signal_keys, _groups(rules)
    )


def _groups(rules: Sequence[_CompiledRule]) -> dict[int, tuple[int, Condition]]:
    found: dict[int, tuple[int, Condition]] = {}
    start = 0
    for stop in range(1, len(rules) + 1):
        is_end = stop == len(rules) or not _is_grouped(rules[stop]) or stop - start == GROUP
        if not _is_grouped(rules[start]):
            start = stop
        elif is_end:
            conditions = [rule.condition.source for rule in rules[start:stop] if rule.condition is not None]
            if len(conditions) > 1:
                found[start] = stop, Condition(" || ".join(f"({each})" for each in conditions))
            start = stop
    return found


def _is_grouped(rule: _CompiledRule) -> bool:
    return rule.condition is not None and not rule.signals


def _signals(names: Names) -> Names:
    return Names(name for name in names if name.startswith(SIGNALS))


def _compile(rules: Sequence[Rule], place: str, prefix: str = "") -> list[_CompiledRule]:
    conditions = [None if rule.when is None else Condition(rule.when) for rule in rules]
    return [
        _CompiledRule(
            f"{prefix}rule {number}",
            rule.name,
            rule,
            f"{place}.{number - 1}",
            condition,
            Names() if condition is None else _signals(condition.names),
        )
        for number, (rule, condition) in enumerate(zip(rules, conditions, strict=True), 1)
    ]

"""Checks of routes and rules that concern other parts of the policies: models, headers, rules before them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from policies.comparisons import Known, doubts
from policies.conditions import Condition, ConditionError
from policies.convert import KeyPath, nearest_place
from policies.errors import Place, Problem
from policies.known_values import known_values
from policies.names import nearest
from policies.routes import DESTINATIONS, ERROR_CLASSES
from policies.variables import NEED_VECTORS, UNAVAILABLE
from policies.witnesses import outcome

NO_HEADERS = {"authorization", "x-api-key", "cookie", "proxy-authorization"}
"""Headers with secrets: conditions cannot read them, as explanations show what they have read."""


class RouteChecks:
    """Checks `routes` and `routing` as converted from YAML; `problems` are errors, `warnings` are not."""

    def __init__(self, sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._places = places
        self._sections = sections
        self._models: Mapping[str, Any] = sections["models"]
        self._routes: Mapping[str, Any] = sections["routes"]
        self._routing: Mapping[str, Any] = sections["routing"]
        self._probes: Mapping[str, Any] = sections["probes"]
        self._phrases: Mapping[str, Any] = sections["signals"].get("phrases") or {}
        self._has_encoder = any(("models", name, "encoder") in places for name in self._models)
        self._adapters: dict[str, Collection[str]] = {
            model: list(((entry or {}).get("engine") or {}).get("adapters") or {})
            for model, entry in self._models.items()
        }

    def run(self) -> None:
        """Check everything."""
        for header in self._routing.get("headers") or []:
            if header in NO_HEADERS:
                message = f"routing.headers has {header!r}, which carries secrets; remove it"
                self._report(("routing", "headers"), message)
        always = self._check_rules(("routing", "rules"), self._routing.get("rules") or [])
        for name, route in self._routes.items():
            if always is not None:
                message = f"route {name!r} is never used: {always} of routing.rules always matches"
                self._warn(("routes", name), message)
            self._check_route(name, route or {})
        self._check_probe_headers()

    def _check_probe_headers(self) -> None:
        """Report headers that no condition can read: the probe would test something else than it says."""
        known = self._routing.get("headers") or []
        for name, probe in self._probes.items():
            for header in (probe or {}).get("headers") or {}:
                if header.lower() not in known:
                    hint = nearest(header.lower(), known) or "; add it there"
                    message = f"probe {name!r} has the header {header!r}, not one of routing.headers{hint}"
                    self._report(("probes", name, "headers", header), message)

    def _check_route(self, name: str, route: Mapping[str, Any]) -> None:
        path = ("routes", name)
        if name in self._models:
            where = self._places[("models", name)]
            self._report(path, f"route {name!r} has the name of a model, defined at {where}; rename one")
        self._check_action(path, route)
        always = self._check_rules((*path, "rules"), route.get("rules") or [])
        own = _destinations(route)
        if not own and always is None:
            message = f"route {name!r} does not say what to do when no rule matches; give it `model`"
            self._report(path, message)
        elif own and always is not None:
            self._warn((*path, own[0]), f"{'.'.join(path)}.{own[0]} is never used: {always} always matches")

    def _check_rules(self, path: KeyPath, rules: list[Mapping[str, Any] | None]) -> str | None:
        """Check them in order; returns the first that always decides."""
        always: str | None = None
        seen: dict[str, str] = {}
        before = self._routing.get("rules") or []
        is_declared = any(UNAVAILABLE in ((rule or {}).get("when") or "") for rule in (*before, *rules))
        for number, rule in enumerate(rules):
            where = (*path, str(number))
            label = f"rule {number + 1}"
            if rule is None:
                continue
            self._check_action(where, rule)
            if always is not None:
                self._warn(where, f"{label} is never reached: {always} always matches")
                continue
            condition = self._condition(where, rule.get("when"))
            decides = bool(_destinations(rule))
            unread = set() if condition is None or is_declared else NEED_VECTORS & condition.names
            if unread and rule.get("refuse") is not None:
                self._warn((*where, "when"), f"{label} {_FAILS_OPEN.format(min(unread))}")
            if condition is not None and condition.constant is False:
                self._warn(where, f"{label} is never used: its condition is always false")
            elif condition is not None and decides and condition.source in seen:
                self._warn(where, f"{label} is never used: {seen[condition.source]} has the same condition")
            elif decides and (rule.get("when") is None or (condition is not None and condition.constant)):
                always = label
            elif condition is not None and decides:
                seen[condition.source] = label
        return always

    def _condition(self, path: KeyPath, source: str | None) -> Condition | None:
        """The rule's condition; None without one, or when its errors have been reported already."""
        if source is None:
            return None
        try:
            condition = Condition(source)
        except ConditionError:
            return None
        route = path[1] if path[0] == "routes" else ""
        known = known_values(self._sections, route)
        found = dict.fromkeys(doubts(source, known))
        for doubt in found or self._outcome(condition, known):
            self._warn((*path, "when"), doubt)
        headers = self._routing.get("headers") or []
        for name, key in sorted(condition.keys):
            if name == "headers" and key not in headers:
                lower = key.lower()
                remedy = f"write {lower!r}" if lower in headers else f"add {lower!r} there"
                close = nearest(lower, headers)
                remedy = (
                    close.removeprefix("; ") if "did you mean" in close and lower not in headers else remedy
                )
                self._report((*path, "when"), f"headers[{key!r}] is not one of routing.headers; {remedy}")
            elif name.startswith("live.") and key not in self._models:
                self._report((*path, "when"), f"{name}[{key!r}] is no model{nearest(key, self._models)}")
            elif name == "signals.similarity" and key not in self._phrases:
                hint = nearest(key, self._phrases)
                self._report((*path, "when"), f"{name}[{key!r}] is none of signals.phrases{hint}")
        if (vectors := NEED_VECTORS & condition.names) and not self._has_encoder:
            message = f"{min(vectors)} needs an encoder; add a model with a section `encoder`"
            self._report((*path, "when"), message)
        return condition

    def _outcome(self, condition: Condition, known: Mapping[str, Known]) -> Iterator[str]:
        """What can be said of all requests, where no single comparison is to blame."""
        has_prices = any((entry or {}).get("price") for entry in self._models.values())
        holds = outcome(condition, known, has_prices=has_prices)
        is_said = holds is not None and (not holds or re.search(r"\|\||!", condition.source) is not None)
        if condition.constant is None and is_said:
            closed = sorted(name for name in condition.names & known.keys() if not known[name].pattern)
            listed = "".join(f"; {name} is {known[name].listed()}" for name in closed)
            spent = any(name.endswith("spent_usd") for name in condition.names) and not has_prices
            listed += "; nothing is spent, as no model has a `price`" if spent else ""
            yield f"the condition {'always' if holds else 'never'} holds, whatever is asked{listed}"

    def _check_action(self, path: KeyPath, action: Mapping[str, Any]) -> None:
        found = _destinations(action)
        if len(found) > 1:
            self._report(path, f"{'.'.join(path)} has both {' and '.join(found)}; keep one")
        for where, target in targets_of(action):
            self._check_target((*path, *where), target)
        self._check_choose((*path, "choose"), action.get("choose") or {})
        bounds = ((action.get("parameters") or {}).get("clamp")) or {}
        for name, bound in bounds.items():
            low, high = (bound or {}).get("min"), (bound or {}).get("max")
            if low is not None and high is not None and low > high:
                where = (*path, "parameters", "clamp", name)
                self._report(where, f"{'.'.join(where)} has min {low:g} over max {high:g}; swap them")

    def _check_choose(self, path: KeyPath, choose: Mapping[str, Any]) -> None:
        label, candidates, default = ".".join(path), choose.get("candidates") or {}, choose.get("default")
        if default is not None and default not in candidates:
            message = f"{label}.default is {default!r}, no candidate{nearest(default, candidates)}"
            self._report((*path, "default"), message)
        if choose.get("strong_share") is not None and choose.get("budget_usd_per_day") is not None:
            self._report((*path, "strong_share"), f"{label} has both strong_share and a budget; keep one")
        if choose.get("budget_usd_per_day") is not None and not self._has_price(candidates):
            message = f"{label}.budget_usd_per_day needs the `price` of a candidate; none has one"
            self._report((*path, "budget_usd_per_day"), message)
        for key in ("strong_share", "default"):
            if choose.get(key) is not None and choose.get("estimate") is None:
                self._report((*path, key), f"{label}.{key} needs an `estimate`; add one or remove it")

    def _has_price(self, candidates: Collection[str]) -> bool:
        """Whether one has a price, or is an adapter, which has its model's."""
        return any(name not in self._models or (self._models[name] or {}).get("price") for name in candidates)

    def _check_target(self, path: KeyPath, target: str) -> None:
        what = f"route {path[1]!r}" if path[0] == "routes" else ".".join(path[:3])
        if target in self._models:
            if ("models", target, "encoder") in self._places:
                self._report(path, f"{what} leads to {target!r}, an encoder, which cannot chat")
            return
        bases = adapter_bases(self._adapters, target)
        if len(bases) > 1:
            choice = " or ".join(f"{base}:{target}" for base in bases)
            self._report(path, f"{what} leads to {target!r}, an adapter of several models; write {choice}")
        elif not bases:
            known = [*self._models, *(name for found in self._adapters.values() for name in found)]
            known += [f"{base}:{each}" for base, found in self._adapters.items() for each in found]
            hint = "; it is a route, and routes lead to models" if target in self._routes else ""
            self._report(
                path, f"{what} leads to the unknown model {target!r}{hint or nearest(target, known)}"
            )

    def _report(self, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(nearest_place(self._places, path), message))

    def _warn(self, path: KeyPath, message: str) -> None:
        self.warnings.append(Problem(nearest_place(self._places, path), message))


_FAILS_OPEN = (
    "may let requests pass while the encoder does not answer: {} is empty then; refuse them too with "
    f"`{UNAVAILABLE} || …`, or write `!{UNAVAILABLE} && …`"
)


def adapter_bases(adapters: Mapping[str, Collection[str]], name: str) -> list[str]:
    """Return the base models of the adapter called `name` or `BASE:NAME`, given each model's adapters."""
    qualified = [base for base, found in adapters.items() if any(name == f"{base}:{each}" for each in found)]
    return qualified or [base for base, found in adapters.items() if name in found]


def _destinations(action: Mapping[str, Any]) -> list[str]:
    return [key for key in DESTINATIONS if action.get(key) is not None]


_NAMED: tuple[KeyPath, ...] = (
    ("model",), ("split", "models"), ("choose", "candidates"), ("cascade", "models"), ("best_of", "models"),
    ("shadow", "model"), *(("fallback", key) for key in ("any", *ERROR_CLASSES)),
)  # fmt: skip
"""Where an action names models: one, a list of them, or the keys of a mapping."""


def targets_of(action: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Every model that an action names, with its path below the action."""
    for path in _NAMED:
        found: Any = action
        for key in path:
            found = (found or {}).get(key)
        if isinstance(found, str):
            yield path, found
        elif isinstance(found, list):
            yield from (((*path, str(number)), name) for number, name in enumerate(found) if name is not None)
        else:
            yield from (((*path, name), name) for name in found or {})

"""A decision in words: the route, each rule that was tried with the values that it saw, and what follows."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.routing.probe_result import Decision
from policies.routes import Action
from policies.routing import Outcome
from router.log import Placement


def explain(decision: Decision, version: str) -> str:
    """Several lines, each with a label. Nothing of the prompt's text is in them."""
    choice = decision.choice
    lines = [("policy", version), ("route", choice.route or "none: the request names a model")]
    lines += [("rule", _outcome(each)) for each in choice.tried]
    is_refused = decision.status != 200 and not decision.models
    if is_refused:
        lines.append(("refused", f"{decision.status}: {decision.message}"))
    if decision.is_blocked:
        lines.append(("blocked", "by a guardrail: no model is called"))
    elif not is_refused:
        following = "".join(f", then {name}" for name in decision.following)
        lines.append(("model", " or ".join(decision.models) + following))
        lines += [] if decision.status == 200 else [("failed", f"with status {decision.status}")]
    if decision.strategy:
        values = ", ".join(f"{name} {value:.3f}" for name, value in decision.values.items())
        lines.append(("chosen", decision.strategy + (f"   [{values}]" if values else "")))
    is_by_limit = is_refused and choice.action is None and not decision.guardrails
    lines.append(("why", "the tenant's tier and limits" if is_by_limit else choice.reason))
    is_called = not (is_refused or decision.is_blocked)
    for change in choice.changes:
        lines += [line for line in _changes(change) if is_called or line[0] != "shadow"]
    if decision.cache is not None:
        lines.append(("cache", decision.cache))
    if decision.guardrails:
        lines.append(("found", ", ".join(decision.guardrails)))
    if decision.masked:
        lines.append(("masked", ", ".join(decision.masked)))
    return "".join(f"{label:<9}{text}\n" for label, text in lines)


def explain_placement(placement: Placement) -> str:
    """A line for each engine process of the model: what the prompt was predicted to cost it."""
    lines = []
    for each in placement.quotes:
        chosen = f", chosen: {placement.reason}" if each.replica == placement.chosen else ""
        cost = each.why_not or f"{each.seconds * 1e3:.1f} ms to the first token{chosen}"
        tokens = f"queue {each.queue_tokens}, uncached {each.uncached_tokens}, cached {each.cached_tokens}"
        lines.append(f"{'replica':<9}{each.replica}: {cost}   [{tokens}]\n")
    return "".join(lines)


def _outcome(outcome: Outcome) -> str:
    if not outcome.condition:
        return f"{outcome.rule}: always"
    verdict = {True: "yes", False: "no", None: "cannot be evaluated"}[outcome.matched]
    values = ", ".join(f"{name} = {_shown(value)}" for name, value in outcome.values.items())
    return f"{outcome.rule}: {verdict}, {' '.join(outcome.condition.split())}" + (
        f"   [{values}]" if values else ""
    )


def _shown(value: object) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else repr(value)
        if isinstance(value, str)
        else f"{value}"
    )


def _changes(action: Action) -> Iterator[tuple[str, str]]:
    if action.split is not None:
        total = sum(action.split.models.values())
        shares = ", ".join(f"{name} {weight / total:.0%}" for name, weight in action.split.models.items())
        yield "split", f"{shares}; the same for each {action.split.sticky}"
    if action.cascade is not None:
        causes = ", ".join(action.cascade.escalate_on)
        yield "cascade", f"below confidence {action.cascade.min_confidence:g} the next model; on {causes}"
    if action.best_of is not None:
        counts = ", ".join(f"{count} of {name}" for name, count in action.best_of.models.items())
        yield "best of", f"{counts}, by {action.best_of.scorer}"
    if action.parameters is not None:
        yield "changes", _compact(action.parameters)
    if action.system is not None:
        yield "changes", f"a system text of {len(action.system)} characters is added"
    if action.timeouts is not None:
        yield "timeouts", _compact(action.timeouts)
    if action.shadow is not None:
        yield "shadow", f"{action.shadow.share:.0%} also to {action.shadow.model}"
    yield from _more_calls(action)


def _more_calls(action: Action) -> Iterator[tuple[str, str]]:
    if action.retry is not None:
        yield "retry", _compact(action.retry) if action.retry.attempts else "never"
    if action.hedge is not None:
        yield "hedge", _compact(action.hedge)
    if action.fallback is not None:
        lists = (f"{error} → {', '.join(names)}" for error, names in action.fallback.all() if names)
        yield "fallback", "; ".join(lists)


def _compact(values: msgspec.Struct) -> str:
    """The values that are set, as YAML in one line."""
    found = _set_values(msgspec.to_builtins(values))
    return str(found).replace("'", "")[1:-1]


def _set_values(value: object) -> object:
    if isinstance(value, dict):
        return {key: _set_values(each) for key, each in value.items() if each not in (None, [], {})}
    return value

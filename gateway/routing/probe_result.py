"""What was decided about a request, and how that differs from a probe's expectation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from policies.probes import CacheUse, Probe
from policies.routing import Choice


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about a request. `models` are those that may answer; none when it is refused."""

    choice: Choice
    models: tuple[str, ...] = ()
    following: tuple[str, ...] = ()  # those that a cascade asks where the first one is not good enough
    status: int = 200
    message: str = ""  # of the refusal
    strategy: str = ""  # what chose among candidates, and why
    values: Mapping[str, float] = field(default_factory=dict)  # by candidate, as the strategy compares
    cache: CacheUse | None = "none"  # None: not known, of a recorded request
    guardrails: tuple[str, ...] = ()  # what they found in the request
    masked: tuple[str, ...] = ()  # what of it they masked or redacted
    is_blocked: bool = False  # by a guardrail


def failures(probe: Probe, decision: Decision) -> Iterator[str]:
    """What differs from the expectation, with the reason for what was decided."""
    expect, choice = probe.expect, decision.choice
    names = {choice.rule, choice.rule_name}
    status = 200 if expect.status is None and expect.model is not None else expect.status
    checks = (
        ("route", expect.route, choice.route, expect.route == choice.route),
        ("rule", expect.rule, choice.rule or "none", expect.rule in names),
        ("status", status, decision.status, status == decision.status),
        ("model", expect.model, " or ".join(decision.models) or "none", expect.model in decision.models),
        ("cache", expect.cache, decision.cache, expect.cache == decision.cache),
    )
    if expect.guardrails is not None:
        yield from _guardrail_failures("find", expect.guardrails, decision.guardrails)
    if expect.masked is not None:
        yield from _guardrail_failures("mask", expect.masked, decision.masked)
    if expect.blocked is not None and expect.blocked != decision.is_blocked:
        yield _block_failure(decision)
    for what, wanted, found, is_right in checks:
        if wanted is not None and not is_right:
            yield f"expected {what} {wanted!r}, got {found!r} ({choice.reason})"


def _block_failure(decision: Decision) -> str:
    found = ", ".join(decision.guardrails) or "nothing"
    if decision.is_blocked:
        return f"expected that guardrails let the request pass, but they refuse it: they found {found}"
    message = f"expected that guardrails refuse the request, but they let it pass: they found {found}"
    is_refused = decision.status >= 400
    return f"{message}; a rule refuses it: expect `status: {decision.status}`" if is_refused else message


def _guardrail_failures(what: str, expected: Sequence[str], found: Sequence[str]) -> Iterator[str]:
    """A finding is expected by its whole name, or by its check."""
    names = [{each, each.partition(":")[0]} for each in found]
    is_complete = all(any(each in name for name in names) for each in expected)
    if not is_complete or not all(name & set(expected) for name in names):
        wanted = ", ".join(expected) or "nothing"
        yield f"expected guardrails to {what} {wanted}, got {', '.join(found) or 'nothing'}"

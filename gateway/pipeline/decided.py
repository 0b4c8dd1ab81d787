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
    cache: CacheUse = "none"
    guardrails: tuple[str, ...] = ()  # what they found in the request


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
        yield from _guardrail_failures(expect.guardrails, decision.guardrails)
    for what, wanted, found, is_right in checks:
        if wanted is not None and not is_right:
            yield f"expected {what} {wanted!r}, got {found!r} ({choice.reason})"


def _guardrail_failures(expected: Sequence[str], found: Sequence[str]) -> Iterator[str]:
    """A finding is expected by its whole name, or by its check."""
    names = [{each, each.partition(":")[0]} for each in found]
    is_complete = all(any(each in name for name in names) for each in expected)
    if not is_complete or not all(name & set(expected) for name in names):
        wanted = ", ".join(expected) or "nothing"
        yield f"expected guardrails to find {wanted}, got {', '.join(found) or 'nothing'}"

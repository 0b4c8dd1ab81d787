"""Recorded decisions through other policies: which requests would go elsewhere, and what that would cost.

A record has the values of conditions' variables, but no text of a prompt and no name of a user.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from policies.document import Policies, Price
from policies.routing import Choice, Routing, SignalsNeeded
from policies.variables import MAPS, VARIABLES

REFUSED = "(refused)"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and what became of it."""

    facts: dict[str, Any]  # by variable; `time` as ISO 8601
    version: str  # of the policies
    model: str = ""  # that answered; "" when the request was refused
    route: str = ""
    rule: str = ""
    status: int = 200
    input_tokens: int = 0
    output_tokens: int = 0
    duration_s: float = 0.0


@dataclass(slots=True)
class Share:
    """What one model got. Fractions: a split gives each of its models its part of a request."""

    requests: float = 0.0
    cost_usd: float = 0.0


@dataclass(slots=True)
class Replay:
    """Totals over all records."""

    num_requests: int = 0
    num_unknown: int = 0  # the recorded model is not one of the policies'
    before: dict[str, Share] = field(default_factory=dict)
    after: dict[str, Share] = field(default_factory=dict)
    moves: dict[tuple[str, str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Requests by (model, new model, reason for the new one)."""


def replay(records: Iterable[Record], policies: Policies) -> Replay:
    """Decide about each record again. Tokens are taken to be those of the recorded answer."""
    routing, found = Routing(policies), Replay()
    for record in records:
        found.num_requests += 1
        choice = _decide(record.facts, routing)
        before = record.model or REFUSED
        found.num_unknown += before != REFUSED and before not in policies.names()
        _add(found.before, before, 1.0, record, policies)
        for model, part in _parts(choice, record):
            _add(found.after, model, part, record, policies)
            if model != before:
                found.moves[before, model, choice.reason] += part
    return found


def report(found: Replay) -> str:
    """A table of models, and the changes from the most frequent to the rarest."""
    lines = [f"requests  {found.num_requests}"]
    if found.num_unknown:
        lines.append(f"unknown   {found.num_unknown} were answered by models that these policies lack")
    lines.append(f"{'model':<32}{'now':>10}{'then':>10}{'now USD':>12}{'then USD':>12}")
    for model in sorted({*found.before, *found.after}):
        now, then = found.before.get(model, Share()), found.after.get(model, Share())
        lines.append(
            f"{model:<32}{now.requests:>10g}{then.requests:>10.6g}{now.cost_usd:>12.6f}{then.cost_usd:>12.6f}"
        )
    for (before, after, reason), count in sorted(found.moves.items(), key=lambda move: -move[1]):
        lines.append(f"{count:g} {before} → {after}: {reason}")
    if not found.moves:
        lines.append("nothing changes")
    return "\n".join(lines) + "\n"


def _decide(recorded: Mapping[str, Any], routing: Routing) -> Choice:
    name, facts = recorded["request.model"], _facts(recorded, routing)
    try:
        return routing.decide(name, facts)
    except SignalsNeeded as needed:
        for signal in needed.names:
            facts[signal] = recorded.get(signal, {} if signal in MAPS else VARIABLES[signal].missing)
        for name, key in needed.keys:
            facts[name] = {key: 0.0, **facts[name]}
    return routing.decide(recorded["request.model"], facts)


def _facts(recorded: Mapping[str, Any], routing: Routing) -> dict[str, Any]:
    """The facts that the conditions need; what was not recorded is empty."""
    names, keys = routing.conditions(recorded["request.model"])
    facts: dict[str, Any] = {name: {} if name in MAPS else recorded.get(name, "") for name in names}
    if "time" in facts:
        facts["time"] = datetime.fromisoformat(recorded["time"])
    for name, key in keys:
        missing: object = {"live.ready": True, "live.queue": 0, "live.spent_usd": 0.0}.get(name, "")
        facts[name][key] = recorded.get(name, {}).get(key, missing)
    return facts


def _parts(choice: Choice, record: Record) -> Iterator[tuple[str, float]]:
    action = choice.action
    if action is None:
        yield record.model or REFUSED, 1.0
    elif action.refuse is not None:
        yield REFUSED, 1.0
    elif action.split is not None:
        total = sum(action.split.models.values())
        yield from ((model, weight / total) for model, weight in action.split.models.items())
    else:
        yield from ((model, 1.0) for model in action.targets())


def _add(shares: dict[str, Share], model: str, part: float, record: Record, policies: Policies) -> None:
    share = shares.setdefault(model, Share())
    share.requests += part
    entry = policies.models.get(model)
    if entry is not None and entry.price is not None:
        share.cost_usd += part * _cost_usd(entry.price, record)


def _cost_usd(price: Price, record: Record) -> float:
    spent = record.input_tokens * price.input_usd_per_million_tokens
    return (spent + record.output_tokens * price.output_usd_per_million_tokens) / 1e6

"""Recorded decisions through other policies: which requests would go elsewhere, and what that would cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from policies.choose import ChoiceCandidate, Choose
from policies.document import ModelEntry, Policies
from policies.releases import Capabilities
from policies.routing import Choice, Routing, SignalsNeeded
from policies.time_limit import check_time
from policies.variables import MAPS, VARIABLES
from router.log import Record
from router.releases import Released, releases_of
from router.strategies import Candidate, predicted_quality, strategy_of

REFUSED = "(refused)"


@dataclass(slots=True)
class Share:
    """What one model got. Fractions: a split gives each of its models its part of a request."""

    requests: float = 0.0
    cost_usd: float = 0.0
    duration_s: float = 0.0
    quality: float = 0.0  # sum over the requests of which it is predicted
    num_predicted: float = 0.0


@dataclass(slots=True)
class Replay:
    """Totals over all records."""

    num_requests: int = 0
    num_unknown: int = 0  # the recorded model is not one of the policies'
    before: dict[str, Share] = field(default_factory=dict)
    after: dict[str, Share] = field(default_factory=dict)
    moves: dict[tuple[str, str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Requests by (model, new model, reason for the new one)."""


def replay(records: Sequence[Record], policies: Policies) -> Replay:
    """Decide about each record again. Tokens are taken to be those of the recorded answer."""
    found, deciding = Replay(), _Deciding(records, policies)
    for record in records:
        check_time()
        found.num_requests += 1
        choice = decide(record.facts, deciding.routing)
        before = record.model or REFUSED
        found.num_unknown += before != REFUSED and before not in policies.names()
        deciding.add(found.before, before, 1.0, record)
        for model, part in deciding.parts(choice, record):
            deciding.add(found.after, model, part, record)
            if model != before:
                found.moves[before, model, choice.reason] += part
    return found


def report(found: Replay) -> str:
    """A table of models, and the changes from the most frequent to the rarest."""
    lines = [f"requests  {found.num_requests}"]
    if found.num_unknown:
        lines.append(f"unknown   {found.num_unknown} were answered by models that these policies lack")
    lines.append(f"{'model':<26}{'requests':>18}{'USD':>24}{'seconds each':>18}{'quality':>14}")
    for model in sorted({*found.before, *found.after}):
        lines.append(f"{model:<26}" + _row(found.before.get(model, Share()), found.after.get(model, Share())))
    lines.append(f"{'all':<26}" + _row(_total(found.before), _total(found.after)))
    for (before, after, reason), count in sorted(found.moves.items(), key=lambda move: -move[1]):
        lines.append(f"{count:g} {before} → {after}: {reason}")
    if not found.moves:
        lines.append("nothing changes")
    return "\n".join(lines) + "\n"


def decide(recorded: Mapping[str, Any], routing: Routing, *, keep_tried: bool = False) -> Choice:
    """What the rules say about recorded facts; those that were not recorded are empty."""
    name, facts = recorded["request.model"], _facts(recorded, routing)
    try:
        return routing.decide(name, facts, keep_tried=keep_tried)
    except SignalsNeeded as needed:
        for signal in needed.names:
            facts[signal] = recorded.get(signal, {} if signal in MAPS else VARIABLES[signal].missing)
        for name, key in needed.keys:
            facts[name] = {key: 0.0, **facts[name]}
    return routing.decide(recorded["request.model"], facts, keep_tried=keep_tried)


def _facts(recorded: Mapping[str, Any], routing: Routing) -> dict[str, Any]:
    names, keys = routing.conditions(recorded["request.model"])
    facts: dict[str, Any] = {}
    for name in names:
        facts[name] = {} if name in MAPS else recorded.get(name, VARIABLES[name].missing)
    if "time" in facts:
        facts["time"] = datetime.fromisoformat(recorded["time"])
    for name, key in keys:
        missing: object = {"live.ready": True, "live.queue": 0, "live.spent_usd": 0.0}.get(name, "")
        facts[name][key] = recorded.get(name, {}).get(key, missing)
    return facts


class _Deciding:
    """What all records have in common under the new policies."""

    def __init__(self, records: Iterable[Record], policies: Policies) -> None:
        self.routing = Routing(policies)
        self._policies = policies
        self._releases = releases_of(policies.models)
        seconds: dict[str, list[float]] = defaultdict(list)
        for record in records:
            if record.status == 200:
                seconds[record.model].append(record.duration_s)
        self._seconds = {model: sum(found) / len(found) for model, found in seconds.items()}
        sections = {place: action.choose for place, action in policies.actions() if action.choose is not None}
        self._qualities = {n: c.quality for each in sections.values() for n, c in each.candidates.items()}
        self._strategies = {place: strategy_of(each) for place, each in sections.items()}

    def parts(self, choice: Choice, record: Record) -> Iterator[tuple[str, float]]:
        """The models that answer the request, each with its part.

        Where the recorded one was chosen again, in one of its releases, what answered for it answers again.
        """
        chosen = record.chosen or record.model
        for model, part in self._chosen(choice, record):
            released = self._released(model)
            yield record.model if chosen in released.names else released.stable, part

    def _released(self, model: str) -> Released:
        return self._releases.get(model, Released(model))

    def _entry(self, model: str) -> ModelEntry | None:
        return self._policies.models.get(self._released(model).stable)

    def _chosen(self, choice: Choice, record: Record) -> Iterator[tuple[str, float]]:
        action = choice.action
        if action is None:
            yield record.chosen or record.model or REFUSED, 1.0
        elif action.refuse is not None:
            yield REFUSED, 1.0
        elif action.split is not None:
            total = sum(action.split.models.values())
            yield from ((model, weight / total) for model, weight in action.split.models.items())
        elif action.choose is not None:
            yield self._choose(action.choose, choice.place, record), 1.0
        elif action.cascade is not None:
            cascade = action.cascade
            is_hard = cascade.estimate and record.gain is not None and record.gain >= cascade.skip_above
            first = cascade.models[-1 if is_hard else 0]
            answered = (name for name in cascade.models if record.model in self._released(name).names)
            yield first if is_hard else next(answered, first), 1.0
        else:
            yield action.targets()[0], 1.0

    def _choose(self, section: Choose, place: str, record: Record) -> str:
        usable = self._usable(section, record.facts)
        if not usable:
            return REFUSED
        familiarity = 1.0 if record.familiarity is None else record.familiarity
        if section.estimate and section.default in usable and familiarity < section.min_familiarity:
            return section.default
        candidates = self._candidates(usable)
        return self._strategies[place].choose(candidates, record.gain, 0.5).model

    def add(self, shares: dict[str, Share], model: str, part: float, record: Record) -> None:
        """Count a part of a request for a model."""
        share = shares.setdefault(model, Share())
        share.requests += part
        share.duration_s += part * (
            record.duration_s if model == record.model else self._seconds.get(model, 0.0)
        )
        entry = self._policies.models.get(model)
        if entry is not None and entry.price is not None:
            share.cost_usd += part * entry.price.tokens_usd(record.input_tokens, record.output_tokens)
        if model in self._qualities:
            share.quality += part * self._quality(model, record.gain)
            share.num_predicted += part

    def _quality(self, model: str, gain: float | None) -> float:
        known = [Candidate(name, quality, 0.0) for name, quality in self._qualities.items()]
        return predicted_quality(known, gain)[[each.model for each in known].index(model)]

    def _candidates(self, usable: Mapping[str, ChoiceCandidate]) -> list[Candidate]:
        costs = {}
        for name, rules in usable.items():
            entry = self._entry(name)
            price = None if entry is None else entry.price
            usd = 0.0 if price is None else price.input_and_output_usd
            costs[name] = usd if rules.cost is None else rules.cost
        dearest = max(costs.values()) or 1.0
        return [
            Candidate(name, rules.quality, costs[name] / dearest, self._seconds.get(name, 0.0))
            for name, rules in usable.items()
        ]

    def _usable(self, section: Choose, facts: Mapping[str, Any]) -> dict[str, ChoiceCandidate]:
        """Candidates that can answer the request; those that were ready, if any was."""
        num_tokens = facts.get("request.num_tokens_estimate", 0)
        wants_tools = facts.get("request.has_tools", False)
        wants_reasoning = facts.get("request.reasoning_effort", "") not in ("", "none")
        able = {}
        for name, rules in section.candidates.items():
            entry = self._entry(name)
            capabilities = Capabilities() if entry is None else entry.capabilities
            if rules.can_answer(
                capabilities, num_tokens, wants_tools=wants_tools, wants_reasoning=wants_reasoning
            ):
                able[name] = rules
        ready = facts.get("live.ready", {})
        return {n: rules for n, rules in able.items() if ready.get(self._released(n).stable, True)} or able


def _row(now: Share, then: Share) -> str:
    def each(share: Share) -> tuple[str, str]:
        seconds = f"{share.duration_s / share.requests:.2f}" if share.requests else "–"
        return seconds, f"{share.quality / share.num_predicted:.2f}" if share.num_predicted else "–"

    (now_s, now_quality), (then_s, then_quality) = each(now), each(then)
    return (
        f"{f'{now.requests:g} → {then.requests:.6g}':>18}{f'{now.cost_usd:.6f} → {then.cost_usd:.6f}':>24}"
        f"{f'{now_s} → {then_s}':>18}{f'{now_quality} → {then_quality}':>14}"
    )


def _total(shares: Mapping[str, Share]) -> Share:
    found = Share()
    for share in shares.values():
        for name in Share.__slots__:
            setattr(found, name, getattr(found, name) + getattr(share, name))
    return found

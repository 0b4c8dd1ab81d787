"""What is kept of a request that has ended, and how it is shown: names and numbers, never a text or a key.

Keeping refers to what the stages knew; words and tables are made when a record is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from backend.identifiers import CHOICE
from backend.types import RequestTrace
from gateway.answer import Usage
from gateway.exchange.exchange import Exchange, Routed
from gateway.response_cache.directives import HEADER as CACHE_HEADER
from gateway.telemetry.request import Computed, Timeline
from guardrails.screen.verdicts import Finding
from policies.routing import Outcome
from router.log import Placement

SIMILARITY, PROBABILITY = f"{CACHE_HEADER}-similarity", f"{CACHE_HEADER}-probability"
MAX_CHARS = 200
"""Length of a value that a caller chooses, such as a header that a rule reads."""


class Record(msgspec.Struct, frozen=True, eq=False):
    """One request that has ended."""

    row: dict[str, Any]  # the request in one line of a list
    more: dict[str, Any]  # what its details add as it is
    timeline: Timeline
    usage: Usage
    routed: Routed | None
    placements: Sequence[Placement]
    findings: Sequence[Finding]

    def whole(self) -> dict[str, Any]:
        """All of it."""
        found = self.row | self.more
        if self.routed is not None:
            if self.routed.decision is not None:
                found["strategy"] = self.routed.decision.strategy
                found["values"] = dict(self.routed.decision.values)  # by candidate
            found |= {"rule": self.routed.choice.rule, "rule_name": self.routed.choice.rule_name}
            found["gain"] = self.routed.gain
            found["candidates"] = msgspec.to_builtins(self.routed.candidates)
        again = None if self.routed is None else self.routed.again
        return found | {
            "tried": [] if again is None else [_tried(each) for each in again().tried],
            "placements": msgspec.to_builtins(self.placements),
            "findings": msgspec.to_builtins(self.findings),
            "tokens": msgspec.to_builtins(self.usage),
            "tokens_per_s": self._tokens_per_s(),
            "drafts": self._drafts(),
            "timeline": list(self._timeline()),
            "is_partial": not all(each.is_settled for each in self.timeline.computed),
        }

    def _tokens_per_s(self) -> float | None:
        calls_s = [end_s - start_s for _, start_s, end_s, is_call in self.timeline.bars if is_call]
        first_ms = self.row["first_token_ms"]
        if not calls_s or self.usage.completion_tokens < 2 or first_ms is None:
            return None
        took_s = calls_s[-1] - first_ms / 1e3
        return round(self.usage.completion_tokens / took_s, 1) if took_s > 0 else None

    def _drafts(self) -> dict[str, dict[str, int]]:
        """By drafter, of all sequences."""
        found: dict[str, dict[str, int]] = {}
        for each in self.timeline.computed:
            for name, counts in each.trace.drafters.items() if each.trace is not None else ():
                old = found.setdefault(name, {"drafts": 0, "proposed": 0, "accepted": 0})
                for key, count in zip(old, counts, strict=True):
                    old[key] += count
        return found

    def _timeline(self) -> Iterator[dict[str, Any]]:
        """Bars in the order of a waterfall, each below the one that it is a part of."""
        until_s = self.timeline.began_s + self.row["duration_ms"] / 1e3
        yield self._bar(
            0, "http", self.timeline.began_s, until_s, f"{self.row['endpoint']}, {self.row['status']}"
        )
        left = list(self.timeline.computed)
        for name, start_s, end_s, is_call in sorted(self.timeline.bars, key=lambda bar: bar[1]):
            yield self._bar(1, name, start_s, end_s)
            own: list[Computed] = []
            rest: list[Computed] = []
            for each in left:  # up to a thousand sequences: comparing them would block the event loop
                (own if is_call and start_s <= each.sent_s <= end_s else rest).append(each)
            left = rest
            for each in own:
                if each.trace is not None:
                    yield from self._computed(each.sent_s, each.trace)

    def _computed(self, sent_s: float, trace: RequestTrace) -> Iterator[dict[str, Any]]:
        offset_s = sent_s - trace.arrival_s  # another process's or machine's clock
        began_s = trace.scheduled_s if trace.scheduled_s >= 0 else trace.finished_s
        yield self._bar(2, "queued", sent_s, began_s + offset_s)
        for number, (ended_s, start, num_tokens) in enumerate(trace.chunks):
            text = f"{num_tokens} tokens from {start}"
            if trace.num_cached_tokens and not number:
                text += f", {trace.num_cached_tokens} before them cached"
            yield self._bar(2, "prefill", began_s + offset_s, ended_s + offset_s, text)
            began_s = ended_s
        if trace.first_token_s >= 0:
            text = f"{trace.num_output_tokens} tokens in {trace.num_decode_steps} steps"
            text += f", preempted {trace.num_preemptions} times" if trace.num_preemptions else ""
            for name, (_, proposed, accepted) in trace.drafters.items():
                text += f", {accepted} of {proposed} drafted tokens of {name} accepted"
            text += ", ended by the gateway" if trace.finish_reason == "abort" else ""
            yield self._bar(2, "decode", trace.first_token_s + offset_s, trace.finished_s + offset_s, text)

    def _bar(self, depth: int, name: str, start_s: float, end_s: float, text: str = "") -> dict[str, Any]:
        start_ms, ms = _ms(start_s - self.timeline.began_s), _ms(end_s - start_s)
        return {"depth": depth, "name": name, "start_ms": start_ms, "ms": ms, "text": text}


def record_of(exchange: Exchange, timeline: Timeline, asked_for: str = "", prompt: str = "") -> Record:
    """What is kept of an exchange that all other stages have settled.

    `asked_for`: the model's name in the request, where it is that of one.
    """
    asked, routed, error, use = exchange.asked, exchange.routed, exchange.error, exchange.cache_use
    first_s, usage = asked.telemetry.time_to_first_chunk_s, exchange.charged.usage
    headers, findings = exchange.response_headers, _findings(exchange)
    row = {
        "id": asked.request_id,
        "ended_s": time.time(),
        "monotonic_s": time.monotonic(),  # all workers' order: the clock of `ended_s` may be set back
        "duration_ms": 1e3 * (time.perf_counter() - timeline.began_s),
        "first_token_ms": None if first_s is None else 1e3 * first_s,
        "tenant": exchange.principal.tenant,
        "key_id": exchange.principal.key_id,
        "endpoint": asked.endpoint.name,
        "asked": asked_for,
        "model": "" if exchange.model is None else exchange.model.name,
        "route": "" if routed is None else routed.choice.route,
        "status": 200 if error is None else error.status,
        "error": "" if error is None else error.kind,
        "refused_by": _refused_by(exchange, findings),
        "cache": "" if use is None else use.outcome,
        "findings": len(findings),
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cost_usd": exchange.charged.usd,
    }
    more = {
        "reason": exchange.reason,
        "failed_models": exchange.attempts.failed_models,
        "calls": asked.telemetry.num_attempts,
        "cache_entry": "" if use is None else use.entry_key.hex(),
        "cache_guard": "" if use is None else use.guard,
        "cache_similarity": headers.get(SIMILARITY, ""),
        "cache_probability": headers.get(PROBABILITY, ""),
        "finish_reasons": _finish_reasons(exchange),
        "prompt": prompt,
    }
    if routed is not None:  # without what would keep an old version of the policies alive
        routed = msgspec.structs.replace(routed, model=None, cascade=None)
    placements = exchange.attempts.placements
    return Record(row, more, timeline, usage, routed, placements, findings)


def _findings(exchange: Exchange) -> Sequence[Finding]:
    return () if exchange.screening is None else exchange.screening.verdicts.findings


def _finish_reasons(exchange: Exchange) -> Sequence[str]:
    return getattr(exchange.answer, "finish_reasons", ())


def _refused_by(exchange: Exchange, findings: Sequence[Finding]) -> str:
    """The guardrail that has refused the request or its answer, and for what; "" where none has."""
    error = exchange.error
    how = _finish_reasons(exchange) if error is None else (error.code,)
    stopped = [each for each in findings if each.outcome in ("blocked", "failed_closed")]
    is_refused = stopped and {"content_filter", "guardrail_unavailable"} & set(how)
    return f"{stopped[0].check}: {stopped[0].kind}" if is_refused else ""


def _tried(outcome: Outcome) -> dict[str, Any]:
    """A rule with its condition and the values that it saw, without names of people."""
    values = {name: _shown(name, value) for name, value in outcome.values.items()}
    shown = {"rule": outcome.rule, "condition": outcome.condition, "matched": outcome.matched}
    return {**shown, "values": values}


def _shown(name: str, value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if name == "request.user" or (name == "request.reasoning_effort" and not CHOICE.fullmatch(str(value))):
        return "(not recorded)" if value else ""
    return str(value)[:MAX_CHARS]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)

"""Telemetry of one request: each event is recorded once, in its spans and in the metrics.

begin → stage… → call_started → chunk… → call_ended → end
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType

import msgspec

from backend.types import RequestTrace
from gateway.answer import Usage
from gateway.telemetry import spans
from gateway.telemetry.metrics import Meter, Metrics
from gateway.telemetry.setup import Tracing
from gateway.telemetry.spans import (
    NO_ATTRIBUTES,
    NO_SPANS,
    Attributes,
    RecordedSpans,
    RequestSpans,
    place_of,
)


class CallResult(msgspec.Struct, frozen=True, eq=False, gc=False):
    """How a model call ended. `error_type` is the `kind` of an ApiError, never a message."""

    usage: Usage | None = None
    finish_reasons: Sequence[str] = ()
    response_id: str = ""
    response_model: str = ""
    error_type: str = ""
    error_status: int = 0  # that the client gets, or would get
    cost_usd: float | None = None  # of all calls of the request so far; None: unknown


Bar = tuple[str, float, float, bool]
"""A part of a request's time: name, start and end by `time.perf_counter`, whether a model is called."""


@dataclass(slots=True, eq=False)
class Computed:
    """A sequence that was sent to an engine of ours."""

    sent_s: float  # by time.perf_counter
    trace: RequestTrace | None = None
    is_settled: bool = False  # a cancelled sequence's trace comes after the request's end

    def settle(self, trace: RequestTrace | None) -> None:
        """The engine has told its part; None: it will not, as it has died or refused."""
        self.trace, self.is_settled = trace, True


@dataclass(slots=True, eq=False)
class Timeline:
    """What the parts of a request tell of their time, for its record."""

    began_s: float  # by time.perf_counter
    bars: list[Bar] = field(default_factory=list)  # stages and calls
    computed: list[Computed] = field(default_factory=list)


class TimedStage:
    """Notes when a stage begins and ends, around its span."""

    __slots__ = ("_bars", "_name", "_span", "_start_s")

    def __init__(self, bars: list[Bar], name: str, span: AbstractContextManager[object] | None) -> None:
        self._bars = bars
        self._name = name
        self._span = span

    def __enter__(self) -> None:
        """Start the clock."""
        if self._span is not None:
            self._span.__enter__()
        self._start_s = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.append((self._name, self._start_s, perf_counter(), False))
        if self._span is not None:
            self._span.__exit__(kind, error, trace)


class Telemetry:
    """The process's tracer and instruments; built once in `gateway.wiring.app`."""

    __slots__ = ("metrics", "tracing")

    def __init__(self, tracing: Tracing, metrics: Metrics) -> None:
        self.tracing = tracing
        self.metrics = metrics

    def begin(
        self,
        endpoint: str,
        method: str,
        route: str,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        metrics_label: str = "",
    ) -> RequestTelemetry:
        """Start a request. `endpoint`: one of instruments.ENDPOINTS; `route`: a path template or "".

        `metrics_label`: another one of instruments.ENDPOINTS, for the metrics.
        """
        tracer = self.tracing.tracer
        recorded = RecordedSpans(tracer, method, route, headers) if tracer is not None else NO_SPANS
        return RequestTelemetry(recorded, self.metrics.begin(metrics_label or endpoint), endpoint)


class RequestTelemetry:
    """Spans and meter of one request. `call_ended` and `end` are idempotent: a `finally` may repeat them."""

    __slots__ = (
        "_call_started_s",
        "_called",
        "_ended",
        "_endpoint",
        "_first_chunk_s",
        "annotate",
        "meter",
        "num_attempts",
        "spans",
        "stage",
        "target",
        "timeline",
    )

    def __init__(self, recorded: RequestSpans, meter: Meter, endpoint: str) -> None:
        self.spans = recorded
        self.annotate = recorded.annotate  # attributes of the server span: spans.REQUEST_ID, TENANT, ROUTE, …
        self.stage = recorded.stage  # a span around one stage (`spans.STAGE_…`)
        self.meter = meter
        self._endpoint = endpoint
        self._call_started_s = 0.0
        self._first_chunk_s = 0.0
        self._ended = False
        self.timeline: Timeline | None = None  # None: it is not kept
        self._called = ""  # the model, while it is
        self.num_attempts = 0  # calls of models, retries and fallbacks included
        self.target = ""  # of the upstream's targets, the one that was asked last

    @property
    def time_to_first_chunk_s(self) -> float | None:
        """From the start of the model call; None where there was no call, or no piece of an answer."""
        if not (self._first_chunk_s and self._call_started_s):
            return None
        return self._first_chunk_s - self._call_started_s

    @property
    def traceparent(self) -> str:
        """W3C parent for the spans of other processes; "" when not traced."""
        return self.spans.propagation().get("traceparent", "")

    def keep_timeline(self) -> None:
        """Keep when stages and calls begin and end, from now on."""
        self.timeline = Timeline(perf_counter() - self.meter.elapsed_s)
        bars = self.timeline.bars
        span = None if self.spans is NO_SPANS else self.stage
        self.stage = lambda name: TimedStage(bars, name, None if span is None else span(name))

    def propagation(self) -> dict[str, str]:
        """W3C headers for an upstream; empty when not traced."""
        return self.spans.propagation()

    def link(self, traceparent: str) -> None:
        """This request depends on another one; "": that is not traced."""
        if traceparent:
            self.spans.link(traceparent)

    def call_started(
        self,
        model: str,
        provider: str,
        body: Mapping[str, object],
        metrics_label: str = "",
        place: Attributes = NO_ATTRIBUTES,
    ) -> None:
        """The model call begins. `model` is the resolved name, `provider` a `spans.PROVIDER_…`.

        `metrics_label`: the model's label in metrics, if that is not its name. `place`: see `place_of`.
        """
        self._call_started_s = time.perf_counter()
        self.meter.call_started(metrics_label or model, self._call_started_s)
        self.spans.start_call(self._endpoint, model, provider, body, place)
        self._called = model

    def cache_looked_up(self, outcome: str, metrics_label: str) -> None:
        """The cache was asked. `outcome`: one of instruments.CACHE_OUTCOMES."""
        self.meter.cache_looked_up(metrics_label, outcome)
        self.spans.annotate({spans.CACHE_OUTCOME: outcome})

    def cache_guarded(self, guard: str, metrics_label: str) -> None:
        """A guard stopped the nearest stored answer. `guard`: one of instruments.CACHE_GUARDS."""
        self.meter.cache_guarded(metrics_label, guard)
        self.spans.annotate({spans.CACHE_GUARD: guard})

    def retried(self, cause: str) -> None:
        """An upstream's call failed and is made again. `cause`: one of RETRY_CAUSES."""
        self.num_attempts += 1
        self.meter.retried(cause)
        self.spans.event(spans.EVENT_RETRY, {spans.CAUSE: cause})

    def answered_by(self, place: str) -> None:
        """This one of an upstream's targets answers."""
        self.target = place
        self.spans.annotate({spans.TARGET: place})

    def screened(
        self, verdicts: str, check: str, outcome: str, metrics_label: str, language: str = ""
    ) -> None:
        """A guardrail found something. `verdicts`: all that were found so far, without any of the text.

        `language`: of a text that a check does not read.
        """
        self.meter.screened(metrics_label, check, outcome, language)
        self.spans.annotate({spans.GUARDRAILS: verdicts})
        self.spans.event(spans.EVENT_GUARDRAIL, {spans.CHECK: check, spans.OUTCOME: outcome})

    def signal_unavailable(self, signal: str) -> None:
        """A condition's signal could not be read. `signal`: one of instruments.ENCODER_SIGNALS."""
        self.meter.signal_unavailable(signal)

    def chunk(self) -> None:
        """A piece of the answer (or all of it) has arrived."""
        now_s = time.perf_counter()
        if not self._first_chunk_s:
            self._first_chunk_s = now_s
        self.meter.chunk(now_s)

    def call_ended(self, result: CallResult) -> None:
        """The model call has succeeded or failed."""
        now_s = time.perf_counter()
        self.meter.call_ended(now_s, result.usage, result.error_type)
        if self.timeline is not None and self._called:
            self.timeline.bars.append((f"call {self._called}", self._call_started_s, now_s, True))
            self._called = ""
        if self.spans is not NO_SPANS:
            error_type = str(result.error_status) if result.error_status else result.error_type
            self.spans.end_call(self._call_attributes(result), error_type)

    def end(self, status: int, error_type: str = "") -> None:
        """The response is complete or broken off; `status` is 499 when the client disconnected."""
        if self._ended:
            return
        self._ended = True
        self.meter.end(time.perf_counter(), status, is_broken=bool(error_type) and status < 400)
        self.spans.end(status, error_type)

    def _call_attributes(self, result: CallResult) -> dict[str, str | bool | int | float | list[str]]:
        found: dict[str, str | bool | int | float | list[str]] = {}
        if result.response_id:
            found[spans.RESPONSE_ID] = result.response_id
        if result.response_model:
            found[spans.RESPONSE_MODEL] = result.response_model
        if result.finish_reasons:
            found[spans.FINISH_REASONS] = list(result.finish_reasons)
        if self._first_chunk_s:
            found[spans.TIME_TO_FIRST_CHUNK] = self._first_chunk_s - self._call_started_s
        if self.target:
            found |= place_of(self.target)
        if self.num_attempts:
            found[spans.ATTEMPT] = self.num_attempts
        if result.usage is not None and result.usage.prompt_tokens:  # without a prompt nothing is known
            found |= self._usage_attributes(result.usage)
            if result.cost_usd is not None:
                found[spans.COST] = result.cost_usd
        return found

    def _usage_attributes(self, usage: Usage) -> Attributes:
        """Attributes of the tokens. Parts of them that are 0 may be unknown, and are left out."""
        took_s = time.perf_counter() - self._call_started_s
        parts = {
            spans.CACHED_TOKENS: usage.cached_tokens,
            spans.REASONING_TOKENS: usage.reasoning_tokens,
            spans.MACHINE_SECONDS: usage.machine_seconds,
            spans.TOKENS_PER_SECOND: usage.completion_tokens / took_s,
            spans.USAGE_ESTIMATED: usage.is_estimated,
        }
        known = {name: value for name, value in parts.items() if value}
        return {
            spans.INPUT_TOKENS: usage.prompt_tokens,
            spans.OUTPUT_TOKENS: usage.completion_tokens,
            **known,
        }

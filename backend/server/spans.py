"""The engine's spans of a request: queued, prefill and decode, as children of the gateway's span.

All names and attributes of engine spans are defined here. No text, no token ids. A thread makes and exports
the spans from the records of the step loop; disabled without an endpoint.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING

from backend.config import EngineConfig
from backend.types import RequestTrace

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

SERVICE_NAME = "penstock-engine"
QUEUED, PREFILL, DECODE = "engine.queued", "engine.prefill", "engine.decode"
CHUNK_EVENT = "chunk"

MODEL = "gen_ai.request.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
PROMPT_TOKENS = "penstock.engine.prompt_tokens"
CACHED_TOKENS = "penstock.engine.cached_tokens"
CHUNKS = "penstock.engine.chunks"
CHUNK_START = "penstock.engine.chunk_start"
CHUNK_TOKENS = "penstock.engine.chunk_tokens"
GENERATED_TOKENS = "penstock.engine.generated_tokens"
STEPS = "penstock.engine.steps"
PREEMPTIONS = "penstock.engine.preemptions"
DRAFTS = "penstock.engine.drafts"
DRAFTED_TOKENS = "penstock.engine.drafted_tokens"
ACCEPTED_TOKENS = "penstock.engine.accepted_tokens"

_MAX_WAITING_TRACES = 4096
_FLUSH_TIMEOUT_S = 3.0

Attributes = dict[str, "str | int | list[str]"]


class SpanEmitter:
    """Makes spans of ended requests in a thread. `emit` never blocks: if the thread lags, traces are lost."""

    def __init__(self, model: str, exporter: SpanExporter) -> None:
        self._model = model
        self._provider = _provider(exporter)
        self._tracer = self._provider.get_tracer("penstock.engine")
        # One offset turns monotonic times into wall-clock times, so that the spans of a request line up.
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._queue: queue.Queue[RequestTrace | None] = queue.Queue(_MAX_WAITING_TRACES)
        self._thread = threading.Thread(target=self._work, name="engine-spans", daemon=True)
        self._thread.start()

    def emit(self, trace: RequestTrace) -> None:
        """Queue an ended request."""
        try:
            self._queue.put_nowait(trace)
        except queue.Full:
            logger.warning(
                "spans of request %r are lost: more than %d wait", trace.request_id, _MAX_WAITING_TRACES
            )

    def close(self) -> None:
        """Export what is queued, for a few seconds at most."""
        self._queue.put(None)
        self._thread.join(_FLUSH_TIMEOUT_S)
        # The SDK's shutdown can wait long for a dead collector, so it runs in a thread that may be abandoned.
        flush = threading.Thread(target=self._provider.shutdown, name="engine-spans-flush", daemon=True)
        flush.start()
        flush.join(_FLUSH_TIMEOUT_S)

    def _work(self) -> None:
        while (trace := self._queue.get()) is not None:
            self._make_spans(trace)

    def _make_spans(self, trace: RequestTrace) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({"traceparent": trace.traceparent})
        started_s = trace.scheduled_s if trace.scheduled_s >= 0 else trace.finished_s
        decoding_s = trace.first_token_s if trace.first_token_s >= 0 else trace.finished_s
        self._span(context, QUEUED, (trace.arrival_s, started_s), {})
        if trace.scheduled_s < 0:
            return
        self._span(
            context,
            PREFILL,
            (started_s, decoding_s),
            {
                PROMPT_TOKENS: trace.num_prompt_tokens,
                CACHED_TOKENS: trace.num_cached_tokens,
                CHUNKS: len(trace.chunks),
                PREEMPTIONS: trace.num_preemptions,
            },
            trace.chunks,
        )
        if trace.first_token_s < 0:
            return
        attributes: Attributes = {
            GENERATED_TOKENS: trace.num_output_tokens,
            STEPS: trace.num_decode_steps,
            PREEMPTIONS: trace.num_preemptions,
            FINISH_REASONS: [trace.finish_reason or "abort"],
        }
        if trace.num_drafts:
            attributes |= {
                DRAFTS: trace.num_drafts,
                DRAFTED_TOKENS: trace.num_drafted_tokens,
                ACCEPTED_TOKENS: trace.num_accepted_tokens,
            }
        self._span(context, DECODE, (decoding_s, trace.finished_s), attributes)

    def _span(
        self,
        parent: Context,
        name: str,
        times_s: tuple[float, float],
        attributes: Attributes,
        chunks: list[tuple[float, int, int]] | None = None,
    ) -> None:
        start_ns, end_ns = (self._wall_ns(time_s) for time_s in times_s)
        span = self._tracer.start_span(
            name, parent, attributes={**attributes, MODEL: self._model}, start_time=start_ns
        )
        for ended_s, start, num_tokens in chunks or ():
            span.add_event(
                CHUNK_EVENT, {CHUNK_START: start, CHUNK_TOKENS: num_tokens}, self._wall_ns(ended_s)
            )
        span.end(end_ns)

    def _wall_ns(self, time_s: float) -> int:
        return int(time_s * 1e9) + self._offset_ns


def open_emitter(config: EngineConfig) -> SpanEmitter | None:
    """An emitter for the configured endpoint; None if tracing is off."""
    if not config.otlp_endpoint:
        return None
    return SpanEmitter(config.model, _exporter(config))


def _exporter(config: EngineConfig) -> SpanExporter:
    endpoint, headers = config.otlp_endpoint, config.otlp_headers or None
    if config.otlp_protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"), headers=headers)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=endpoint.rstrip("/") + "/v1/traces", headers=headers)


def _provider(exporter: SpanExporter) -> TracerProvider:
    # Imported here: without tracing an engine should not spend the SDK's time and memory.
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

    # A request that the gateway does not sample has no spans here either.
    provider = TracerProvider(
        resource=Resource.create({"service.name": SERVICE_NAME}),
        sampler=ParentBased(root=ALWAYS_OFF),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return provider

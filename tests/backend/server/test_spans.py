from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from backend.config import EngineConfig
from backend.server import spans
from backend.server.spans import SpanEmitter, open_emitter
from backend.types import RequestTrace

TRACE_ID, PARENT_ID = "1" * 32, "2" * 16


class Kept(InMemorySpanExporter):
    """Keeps spans readable after the emitter has shut its exporter down."""

    def shutdown(self) -> None:
        pass


@pytest.fixture
def exporter() -> Iterator[Kept]:
    return Kept()


def trace(flags: str = "01", **changes: object) -> RequestTrace:
    values: dict[str, object] = {
        "scheduled_s": 11.0,
        "first_token_s": 13.0,
        "finished_s": 17.0,
        "finish_reason": "length",
        "num_cached_tokens": 16,
        "num_preemptions": 1,
        "num_output_tokens": 5,
        "num_decode_steps": 4,
        "chunks": [(12.0, 16, 32), (13.0, 48, 2)],
    }
    return RequestTrace(f"00-{TRACE_ID}-{PARENT_ID}-{flags}", "a", 50, 10.0, **(values | changes))  # type: ignore[arg-type]


def emitted(exporter: Kept, record: RequestTrace) -> dict[str, ReadableSpan]:
    emitter = SpanEmitter("pico", exporter)
    emitter.emit(record)
    emitter.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_three_children_of_the_gateways_span(exporter: Kept) -> None:
    found = emitted(exporter, trace())
    assert set(found) == {spans.QUEUED, spans.PREFILL, spans.DECODE}
    for span in found.values():
        assert span.parent is not None and f"{span.parent.span_id:016x}" == PARENT_ID
        assert span.context is not None and f"{span.context.trace_id:032x}" == TRACE_ID
        assert span.resource.attributes["service.name"] == "penstock-engine"
        assert span.attributes is not None and span.attributes[spans.MODEL] == "pico"
    queued, prefill, decode = (found[name] for name in (spans.QUEUED, spans.PREFILL, spans.DECODE))
    assert queued.end_time == prefill.start_time and prefill.end_time == decode.start_time
    assert queued.start_time is not None and decode.end_time is not None
    assert decode.end_time - queued.start_time == pytest.approx(7e9, abs=1e3)
    assert prefill.attributes is not None and decode.attributes is not None
    assert prefill.attributes[spans.PROMPT_TOKENS] == 50 and prefill.attributes[spans.CACHED_TOKENS] == 16
    assert prefill.attributes[spans.CHUNKS] == len(prefill.events) == 2
    assert decode.attributes[spans.GENERATED_TOKENS] == 5 and decode.attributes[spans.STEPS] == 4
    assert decode.attributes[spans.FINISH_REASONS] == ("length",)
    assert decode.attributes[spans.PREEMPTIONS] == 1
    assert spans.DRAFTS not in decode.attributes


def test_the_decode_span_says_what_drafts_gave(exporter: Kept) -> None:
    record = trace(num_drafts=3, num_drafted_tokens=12, num_accepted_tokens=7)
    attributes = emitted(exporter, record)[spans.DECODE].attributes
    assert attributes is not None
    found = [attributes[name] for name in (spans.DRAFTS, spans.DRAFTED_TOKENS, spans.ACCEPTED_TOKENS)]
    assert found == [3, 12, 7]


def test_an_abort_in_the_queue_leaves_one_span(exporter: Kept) -> None:
    record = trace(scheduled_s=-1.0, first_token_s=-1.0, finish_reason="abort", chunks=[])
    assert set(emitted(exporter, record)) == {spans.QUEUED}


def test_unsampled_requests_leave_nothing(exporter: Kept) -> None:
    assert emitted(exporter, trace(flags="00")) == {}


def test_off_without_an_endpoint() -> None:
    assert open_emitter(EngineConfig(model="m", checkpoint="/c")) is None

"""Each event is recorded once and reaches both spans and metrics."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.answer import Usage
from gateway.telemetry import spans
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import CallResult, Telemetry
from gateway.telemetry.setup import OFF, Tracing
from tests.gateway.telemetry.test_metrics import CHAT, sample

ROUTE = "/v1/chat/completions"


def run_request(telemetry: Telemetry) -> None:
    request = telemetry.begin("chat", "POST", ROUTE, [])
    request.annotate({spans.REQUEST_ID: "req-1"})
    with request.stage(spans.STAGE_AUTHORIZE):
        pass
    request.call_started("pico", spans.PROVIDER_OURS, {"max_tokens": 5})
    assert bool(request.traceparent) is (telemetry.tracing.tracer is not None)
    request.chunk()
    request.chunk()
    request.call_ended(CallResult(Usage(3, 2, 1, 1), ["stop"], "chatcmpl-1", "pico"))
    for _ in range(2):
        request.end(200)


def test_with_tracing_off_there_are_metrics() -> None:
    telemetry = Telemetry(OFF, Metrics(["pico"]))
    run_request(telemetry)
    assert sample(telemetry.metrics, "penstock_requests_total", **CHAT, status="2xx") == 1
    assert sample(telemetry.metrics, "penstock_requests_in_flight", endpoint="chat") == 0


def test_an_estimate_is_marked_and_unknown_usage_is_absent() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(Tracing(provider.get_tracer("test"), provider), Metrics(["pico"]))
    for usage in (Usage(3, 2, is_estimated=True), None):
        request = telemetry.begin("chat", "POST", "/v1/chat/completions", [])
        request.call_started("pico", "penstock", {})
        request.call_ended(CallResult(usage=usage))
        request.end(200)
    calls = [dict(s.attributes or {}) for s in exporter.get_finished_spans() if s.name == "chat pico"]
    assert [call.get("penstock.usage.estimated") for call in calls] == [True, None]
    assert [call.get("gen_ai.usage.output_tokens") for call in calls] == [2, None]


def test_machine_seconds_are_in_the_span_of_an_engine() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(Tracing(provider.get_tracer("test"), provider), Metrics(["pico"]))
    for usage in (Usage(3, 2, machine_seconds=0.5), Usage(3, 2)):
        request = telemetry.begin("chat", "POST", ROUTE, [])
        request.call_started("pico", "penstock", {})
        request.call_ended(CallResult(usage=usage))
        request.end(200)
    calls = [dict(s.attributes or {}) for s in exporter.get_finished_spans() if s.name == "chat pico"]
    assert [call.get("penstock.machine_seconds") for call in calls] == [0.5, None]


def test_with_tracing_on_the_call_carries_usage() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(Tracing(provider.get_tracer("test"), provider), Metrics(["pico"]))
    run_request(telemetry)
    found = {span.name: dict(span.attributes or {}) for span in exporter.get_finished_spans()}
    assert set(found) == {"authorize", "chat pico", "POST /v1/chat/completions"}
    assert found["POST /v1/chat/completions"]["penstock.request.id"] == "req-1"
    call = found["chat pico"]
    seconds = call.pop("gen_ai.response.time_to_first_chunk")
    assert isinstance(seconds, float) and 0 < seconds < 1
    assert call.pop("penstock.output_tokens_per_second", 0) > 0
    assert call == {
        "penstock.model": "pico",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.model": "pico",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "pico",
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 1,
    }


def test_what_an_upstream_has_not_told_is_absent() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(Tracing(provider.get_tracer("test"), provider), Metrics(["pico"]))
    for usage in (Usage(), Usage(3, 2)):
        request = telemetry.begin("chat", "POST", ROUTE, [])
        request.call_started("pico", "openai", {})
        request.call_ended(CallResult(usage, error_type="UpstreamFailed", error_status=502, cost_usd=0.5))
        request.end(502, "UpstreamFailed")
    nothing, told = (dict(s.attributes or {}) for s in exporter.get_finished_spans() if s.name == "chat pico")
    assert not [name for name in nothing if "usage" in name or "cost" in name or "tokens" in name]
    assert {name for name in told if "usage" in name} == {
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
    }
    assert (told["penstock.cost_usd"], told["error.type"]) == (0.5, "502")

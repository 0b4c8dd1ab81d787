"""Spans reach a real collector over both protocols; a dead collector delays nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gateway.settings import TelemetrySettings
from gateway.telemetry.errors import TelemetryError
from gateway.telemetry.setup import OFF, start_tracing
from tests.e2e.collector import Collector, GrpcCollector, HttpCollector


@pytest.fixture(params=["http/protobuf", "grpc"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[str, HttpCollector | GrpcCollector]]:
    collector = HttpCollector() if request.param == "http/protobuf" else GrpcCollector()
    yield request.param, collector
    collector.close()


def test_spans_arrive_and_shutdown_flushes_them(
    listening: tuple[str, HttpCollector | GrpcCollector],
) -> None:
    protocol, collector = listening
    settings = TelemetrySettings(otlp_endpoint=collector.endpoint, otlp_protocol=protocol)
    tracing = start_tracing(settings, "1.2.3")
    assert tracing.tracer is not None
    tracing.tracer.start_span("one").end()
    assert tracing.shutdown()
    (span,) = collector.spans
    assert (span.name, span.service) == ("one", "penstock")


def test_without_endpoint_nothing_is_started() -> None:
    tracing = start_tracing(TelemetrySettings())
    assert tracing is OFF and tracing.tracer is None
    assert tracing.shutdown()


def test_without_endpoint_the_sdk_is_not_even_imported() -> None:
    code = (
        "import sys; from gateway.settings import TelemetrySettings; import gateway.telemetry.setup as s;"
        "s.start_tracing(TelemetrySettings()); sys.exit('opentelemetry.sdk' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_protocol_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TelemetryError, match=r"'carrier-pigeon'; use 'http/protobuf' or 'grpc'"):
        start_tracing(TelemetrySettings(otlp_endpoint="http://127.0.0.1:1", otlp_protocol="carrier-pigeon"))


def test_a_dead_collector_neither_blocks_spans_nor_shutdown() -> None:
    tracing = start_tracing(TelemetrySettings(otlp_endpoint="http://127.0.0.1:1"))
    assert tracing.tracer is not None
    began_s, began_cpu_s = time.perf_counter(), time.thread_time()
    for _ in range(100):
        tracing.tracer.start_span("lost").end()
    assert time.thread_time() - began_cpu_s < 1.0
    assert not tracing.shutdown(timeout_s=0.5)
    assert time.perf_counter() - began_s < 8.0  # the exporter alone tries for ten seconds
    for thread in threading.enumerate():
        if thread.name in ("otlp-flush", "OtelBatchSpanRecordProcessor"):
            thread.join(10.0)
            assert not thread.is_alive()


def test_sampling_respects_the_caller_and_the_ratio() -> None:
    collector = HttpCollector()
    try:
        settings = TelemetrySettings(otlp_endpoint=collector.endpoint, sample_ratio=0.0)
        tracing = start_tracing(settings)
        assert tracing.tracer is not None
        tracing.tracer.start_span("unsampled").end()
        assert tracing.shutdown()
        assert _names(collector) == []
    finally:
        collector.close()


def _names(collector: Collector) -> list[str]:
    return [span.name for span in collector.spans]


@pytest.mark.parametrize(
    ("sampler", "ratio", "kept"),
    [
        ("always_on", 0.0, 20),
        ("always_off", 1.0, 0),
        ("traceidratio", 0.0, 0),
        ("parentbased_always_on", 0.0, 20),
        ("parentbased_always_off", 1.0, 0),
        ("parentbased_traceidratio", 1.0, 20),
    ],
)
def test_samplers(sampler: str, ratio: float, kept: int) -> None:
    collector = HttpCollector()
    tracing = start_tracing(
        TelemetrySettings(otlp_endpoint=collector.endpoint, sampler=sampler, sample_ratio=ratio)
    )
    assert tracing.tracer is not None
    for _ in range(20):
        tracing.tracer.start_span("one").end()
    assert tracing.shutdown()
    assert len(collector.spans) == kept
    collector.close()


@pytest.mark.parametrize("sampler", ["jaeger_remote", "x_parentbased_always_on", "parentbased_"])
def test_an_unknown_sampler_is_refused_with_the_known_ones(sampler: str) -> None:
    with pytest.raises(TelemetryError, match="OTEL_TRACES_SAMPLER is .* use one of always_on, always_off"):
        start_tracing(TelemetrySettings(otlp_endpoint="http://127.0.0.1:1", sampler=sampler))

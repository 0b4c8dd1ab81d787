"""Starts and stops the OTLP export of spans; off unless an endpoint is given.

The SDK itself reads the other OTEL_* variables (batching, resource attributes, compression). It exports in
its own thread: a slow or dead collector loses spans, but never delays requests.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.telemetry.errors import TelemetryError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

    from gateway.settings import TelemetrySettings

PROTOCOLS = ("http/protobuf", "grpc")
FLUSH_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Tracing:
    """The process's tracer; `tracer` is None when tracing is off."""

    tracer: Tracer | None = None
    provider: TracerProvider | None = None
    exporter: SpanExporter | None = None

    def shutdown(self, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Flush and stop; False when the collector did not accept all spans within `timeout_s`."""
        if self.provider is None or self.exporter is None:
            return True
        # The SDK's own shutdown waits up to 30 s for a dead collector.
        thread = threading.Thread(target=self.provider.shutdown, name="otlp-flush", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if not thread.is_alive():
            return True
        self.exporter.shutdown()  # interrupts its retries
        return False


OFF = Tracing()


def start_tracing(settings: TelemetrySettings, version: str = "") -> Tracing:
    """Export spans to the OTLP endpoint of `settings`; without one, `OFF`.

    Raises TelemetryError when the protocol is not one of PROTOCOLS.
    """
    if not settings.otlp_endpoint:
        return OFF
    exporter = _exporter(settings)
    # Imported here: the SDK costs 0.2 s and 20 MB, which only tracing needs.
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    ours = Resource({"service.name": settings.service_name, "service.version": version or "unknown"})
    provider = TracerProvider(
        resource=OTELResourceDetector().detect().merge(ours),
        sampler=ParentBasedTraceIdRatio(settings.sample_ratio),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider.get_tracer("penstock.gateway", version or None), provider, exporter)


def _exporter(settings: TelemetrySettings) -> SpanExporter:
    """The exporter for one of PROTOCOLS."""
    endpoint, headers = settings.otlp_endpoint, settings.otlp_headers or None
    if settings.otlp_protocol == "grpc":
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
        except ImportError:
            raise TelemetryError(
                "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', which needs the extra: pip install 'penstock[grpc]', "
                "or use 'http/protobuf'."
            ) from None
        return GrpcExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"), headers=headers)
    if settings.otlp_protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter(endpoint=endpoint.rstrip("/") + "/v1/traces", headers=headers)
    known = " or ".join(map(repr, PROTOCOLS))
    raise TelemetryError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {settings.otlp_protocol!r}; use {known}.")

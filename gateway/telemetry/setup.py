"""Starts and stops the OTLP export of spans; off unless an endpoint is given.

The SDK itself reads the other OTEL_* variables (batching, resource attributes, compression). It exports in
its own thread: a slow or dead collector loses spans, but never delays requests.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.telemetry.errors import TelemetryError
from gateway.telemetry.spans import SCHEMA_URL

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler
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

    Raises TelemetryError for a protocol or sampler that is unknown.
    """
    if not settings.otlp_endpoint:
        return OFF
    exporter = _exporter(settings)
    # Imported here: the SDK costs 0.2 s and 20 MB, which only tracing needs.
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = Resource({"service.name": settings.service_name, "service.version": version or "unknown"})
    provider = TracerProvider(
        resource=OTELResourceDetector().detect().merge(ours),
        sampler=_sampler(settings),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("penstock.gateway", version or None, schema_url=SCHEMA_URL)
    return Tracing(tracer, provider, exporter)


def _sampler(settings: TelemetrySettings) -> Sampler:
    """The sampler of one of SAMPLERS."""
    from opentelemetry.sdk.trace import sampling

    kind, prefix, root = settings.sampler.rpartition("parentbased_")
    samplers = {
        "always_on": sampling.ALWAYS_ON,
        "always_off": sampling.ALWAYS_OFF,
        "traceidratio": sampling.TraceIdRatioBased(settings.sample_ratio),
    }
    if kind or root not in samplers:
        known = ", ".join(f"{before}{name}" for before in ("", "parentbased_") for name in samplers)
        raise TelemetryError(f"OTEL_TRACES_SAMPLER is {settings.sampler!r}; use one of {known}.")
    return sampling.ParentBased(samplers[root]) if prefix else samplers[root]


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

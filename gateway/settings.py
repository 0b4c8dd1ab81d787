"""Process settings, from flags and environment. This is the only file that reads the environment."""

from __future__ import annotations

import msgspec


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long one request may take, seconds. An upstream model's own limits are in its policy."""

    first_token_s: float = 120.0
    idle_s: float = 60.0
    total_s: float = 900.0


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where traces go. Off without an endpoint."""

    otlp_endpoint: str = ""  # base URL as in OTEL_EXPORTER_OTLP_ENDPOINT, without /v1/traces
    otlp_protocol: str = "http/protobuf"  # or "grpc"
    otlp_headers: dict[str, str] = {}
    service_name: str = "penstock"
    sample_ratio: float = 1.0
    capture_content: bool = False  # prompts and answers in spans; off means off for every sink


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a gateway worker needs beside the policies."""

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    api_keys: tuple[str, ...] = ()  # none: no authentication, loopback only
    max_body_bytes: int = 16 * 1024 * 1024
    timeouts: Timeouts = Timeouts()
    drain_timeout_s: float = 30.0
    access_log: bool = False
    telemetry: TelemetrySettings = TelemetrySettings()
    socket_paths: dict[str, str] = {}  # by model name: Unix socket of its engine or encoder process
    upstream_api_keys: dict[str, str] = {}  # by model name
    status_path: str = ""  # where the supervisor writes how far each process is; "" without supervisor

    def __repr__(self) -> str:
        """Without the secrets."""
        return f"Settings(host={self.host!r}, port={self.port!r}, api_keys=<{len(self.api_keys)}>)"

"""A small OTLP receiver (HTTP/protobuf and gRPC) in the test's own process.

`python -m tests.e2e.collector [PORT]` listens on PORT (4318) and prints each trace as a tree.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Value = str | bool | int | float | list["Value"] | None


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as received; ids in hex, times in seconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int  # 1 internal, 2 server, 3 client
    status: int  # 0 unset, 1 ok, 2 error
    start_s: float
    end_s: float
    service: str
    trace_state: str = ""
    attributes: dict[str, Value] = field(default_factory=dict)


class Collector:
    """Stores received spans; `wait_for` blocks until a condition on them holds."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        self._payloads: list[bytes] = []
        self._changed = threading.Condition()

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans so far."""
        with self._changed:
            return list(self._spans)

    @property
    def payload(self) -> bytes:
        """All exported bytes, to search for what must not be among them."""
        with self._changed:
            return b"".join(self._payloads)

    def receive(self, request: otlp.ExportTraceServiceRequest) -> None:
        """Store one export."""
        found = [
            _span(span, resource.resource)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self._payloads.append(request.SerializeToString())
            self._spans += found
            self._changed.notify_all()

    def wait_for(
        self, condition: Callable[[list[ReceivedSpan]], bool], timeout_s: float = 15.0
    ) -> list[ReceivedSpan]:
        """The spans, once `condition` holds for them; AssertionError with their names after the timeout."""
        with self._changed:
            held = self._changed.wait_for(lambda: condition(self._spans), timeout_s)
            assert held, f"after {timeout_s} s only these spans had come: {[s.name for s in self._spans]}"
            return list(self._spans)


class HttpCollector(Collector):
    """Listens for OTLP over HTTP/protobuf; `endpoint` is the base URL for OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/v1/traces":
                    collector.receive(otlp.ExportTraceServiceRequest.FromString(body))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class GrpcCollector(Collector, otlp_grpc.TraceServiceServicer):
    """Listens for OTLP over gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self._server = grpc.server(ThreadPoolExecutor(2))
        otlp_grpc.add_TraceServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.endpoint = f"http://127.0.0.1:{port}"

    def Export(  # the service's name
        self, request: otlp.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> otlp.ExportTraceServiceResponse:
        """The service's one method."""
        self.receive(request)
        return otlp.ExportTraceServiceResponse()

    def close(self) -> None:
        """Stop listening."""
        self._server.stop(None).wait()


def _span(span: Span, resource: Resource) -> ReceivedSpan:
    about = {pair.key: _value(pair.value) for pair in resource.attributes}
    return ReceivedSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        status=span.status.code,
        start_s=span.start_time_unix_nano / 1e9,
        end_s=span.end_time_unix_nano / 1e9,
        service=str(about.get("service.name", "")),
        trace_state=span.trace_state,
        attributes={pair.key: _value(pair.value) for pair in span.attributes},
    )


def _value(value: AnyValue) -> Value:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    found: Value = getattr(value, kind) if kind else None
    return found


def as_text(spans: Sequence[ReceivedSpan]) -> str:
    """The spans of one trace as an indented tree, with start (from the first span) and duration."""
    first_s = min(span.start_s for span in spans)
    known = {span.span_id for span in spans}

    def lines(parent_ids: set[str], depth: int) -> Iterator[str]:
        for span in sorted(spans, key=lambda each: each.start_s):
            if span.parent_id in parent_ids:
                times = (
                    f"+{(span.start_s - first_s) * 1e3:.1f} ms, {(span.end_s - span.start_s) * 1e3:.1f} ms"
                )
                failed = " ERROR" if span.status == 2 else ""
                yield f"{'  ' * depth}{span.name} [{span.service}] {times}{failed}"
                for name, value in sorted(span.attributes.items()):
                    yield f"{'  ' * depth}    {name} = {value}"
                yield from lines({span.span_id}, depth + 1)

    roots = {span.parent_id for span in spans} - known
    return "\n".join([f"trace {spans[0].trace_id}", *lines(roots, 1)])


def main(port: int) -> None:
    """Print traces until interrupted; a trace is printed again when more of its spans arrive."""
    collector = HttpCollector(port)
    print(f"OTEL_EXPORTER_OTLP_ENDPOINT={collector.endpoint}", flush=True)
    seen = 0
    while True:
        spans = collector.wait_for(lambda found, seen=seen: len(found) > seen, timeout_s=1e9)  # type: ignore[misc]
        for trace_id in dict.fromkeys(span.trace_id for span in spans[seen:]):
            print("\n" + as_text([span for span in spans if span.trace_id == trace_id]), flush=True)
        seen = len(spans)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4318)

"""Every span and attribute name that the gateway emits, and the spans of one request.

`POST /v1/chat/completions` (server) → `chat {model}` (client) → the engine's own spans, or an upstream's.
Names follow OpenTelemetry's HTTP and GenAI conventions where they exist; all others are `penstock.*`. Never
caller's text: no prompts, and no stop sequences or `user` either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from policies.endpoints import ENDPOINTS

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Attributes = Mapping[str, str | bool | int | float | list[str]]

HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_RESPONSE_STATUS_CODE: Final = "http.response.status_code"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
"""The version of the conventions that these names follow."""

MODEL: Final = "penstock.model"
"""Its name in the policies; `gen_ai.request.model` is what the upstream is asked for."""
ATTEMPT: Final = "penstock.attempt"
COST: Final = "penstock.cost_usd"
TOKENS_PER_SECOND: Final = "penstock.output_tokens_per_second"
MACHINE_SECONDS: Final = "penstock.machine_seconds"
USAGE_ESTIMATED: Final = "penstock.usage.estimated"
REQUEST_ID: Final = "penstock.request.id"
TENANT: Final = "penstock.tenant"
ROUTE: Final = "penstock.route"
RULE: Final = "penstock.rule"
REASON: Final = "penstock.reason"
ATTEMPTS: Final = "penstock.attempts"
"""Calls of models, retries and fallbacks included: the last one answered."""
TARGET: Final = "penstock.target"
"""URL and key name of the one that answered, where an upstream has several."""
CLIENT_RETRIES: Final = "penstock.client.retry_count"
EVENT_RETRY: Final = "penstock.retry"
CAUSE: Final = "penstock.retry.cause"
POLICY_VERSION: Final = "penstock.policy.version"
CACHE_OUTCOME: Final = "penstock.cache.outcome"
CACHE_GUARD: Final = "penstock.cache.guard"
GUARDRAILS: Final = "penstock.guardrails"
EVENT_GUARDRAIL: Final = "penstock.guardrail"
CHECK: Final = "penstock.guardrail.check"
OUTCOME: Final = "penstock.guardrail.outcome"

PROVIDER_OURS: Final = "penstock"

NO_ATTRIBUTES: Final[Attributes] = {}

STAGE_AUTHORIZE: Final = "authorize"
STAGE_ADMIT: Final = "admit"
STAGE_RESERVE: Final = "reserve"
STAGE_CHOOSE_MODEL: Final = "choose model"
STAGE_LOOK_UP: Final = "look up"
STAGE_SCREEN: Final = "screen"

OPERATIONS: Final = {
    **{name: each.operation for name, each in ENDPOINTS.items()},
    "shadow": "chat",
    "passthrough": "generate_content",
}
"""Endpoint → gen_ai.operation.name; other endpoints call no model."""

REQUEST_FIELDS: Final[dict[str, tuple[str, type]]] = {
    "temperature": ("gen_ai.request.temperature", float),
    "top_p": ("gen_ai.request.top_p", float),
    "top_k": ("gen_ai.request.top_k", int),
    "max_tokens": ("gen_ai.request.max_tokens", int),
    "max_completion_tokens": ("gen_ai.request.max_tokens", int),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", float),
    "presence_penalty": ("gen_ai.request.presence_penalty", float),
    "seed": ("gen_ai.request.seed", int),
    "n": ("gen_ai.request.choice.count", int),
}
"""Body field → (attribute, type). Only numbers: free text never becomes an attribute."""

MAX_NUMBER: Final = 2**63
_PORTS = {"http": 80, "https": 443}

KNOWN_METHODS: Final = frozenset(
    {"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT"}
)

_W3C = TraceContextTextMapPropagator()
_W3C_FIELDS = (b"traceparent", b"tracestate")


_NO_STAGE = nullcontext()


class RequestSpans:
    """The spans of one request when tracing is off: every method does nothing."""

    __slots__ = ()

    def annotate(self, attributes: Mapping[str, str]) -> None:
        """Set `penstock.*` attributes on the server span."""

    def event(self, name: str, attributes: Mapping[str, str]) -> None:
        """Something happened: an event of the server span."""

    def stage(self, name: str) -> AbstractContextManager[object]:
        """A span around one stage of the pipeline."""
        return _NO_STAGE

    def link(self, traceparent: str) -> None:
        """Link the server span with another request's, on whose answer this one depends."""

    def start_call(
        self,
        endpoint: str,
        model: str,
        provider: str,
        body: Mapping[str, object],
        place: Attributes = NO_ATTRIBUTES,
    ) -> None:
        """Open `chat {model}`; the numbers of `body` become gen_ai.request.* attributes.

        `place`: what is asked, as an upstream knows it.
        """

    def propagation(self) -> dict[str, str]:
        """W3C headers naming the innermost open span as parent; empty when not traced."""
        return {}

    def end_call(self, attributes: Attributes, error_type: str) -> None:
        """End the call's span, as an error when `error_type` is not empty."""

    def end(self, status: int, error_type: str) -> None:
        """End the server span; only a 5xx or a broken stream makes it an error."""


class RecordedSpans(RequestSpans):
    """The spans of one request when tracing is on. Explicit parents: no context variables on the hot path."""

    __slots__ = ("_call", "_server", "_tracer")

    def __init__(
        self, tracer: Tracer, method: str, route: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """`route` is the template of a known path, "" otherwise; `headers` as in an ASGI scope."""
        method = method if method in KNOWN_METHODS else "_OTHER"
        attributes = {HTTP_REQUEST_METHOD: method, URL_SCHEME: "http"}
        if route:
            attributes |= {HTTP_ROUTE: route, URL_PATH: route}
        if retries := _client_retries(headers := list(headers)):
            attributes[CLIENT_RETRIES] = retries
        verb = "HTTP" if method == "_OTHER" else method
        self._tracer = tracer
        self._call: Span | None = None
        self._server: Span = tracer.start_span(
            f"{verb} {route}".rstrip(), _inbound(headers), SpanKind.SERVER, attributes
        )

    def annotate(self, attributes: Mapping[str, str]) -> None:
        """Set `penstock.*` attributes on the server span."""
        self._server.set_attributes(attributes)

    def event(self, name: str, attributes: Mapping[str, str]) -> None:
        """Something happened: an event of the server span."""
        self._server.add_event(name, attributes)

    def stage(self, name: str) -> AbstractContextManager[object]:
        """A span around one stage of the pipeline."""
        return StageSpan(self._tracer.start_span(name, set_span_in_context(self._server)))

    def link(self, traceparent: str) -> None:
        """Link the server span with another request's, on whose answer this one depends."""
        context = _W3C.extract({"traceparent": traceparent}, Context())
        self._server.add_link(get_current_span(context).get_span_context())

    def start_call(
        self,
        endpoint: str,
        model: str,
        provider: str,
        body: Mapping[str, object],
        place: Attributes = NO_ATTRIBUTES,
    ) -> None:
        """Open `chat {model}`; the numbers of `body` become gen_ai.request.* attributes.

        `place`: what is asked, as an upstream knows it.
        """
        operation = OPERATIONS[endpoint]
        attributes: dict[str, str | bool | int | float | list[str]] = {**request_attributes(body)}
        attributes |= {OPERATION: operation, PROVIDER: provider, REQUEST_MODEL: model, MODEL: model, **place}
        name = f"{operation} {attributes[REQUEST_MODEL]}"
        self._call = self._tracer.start_span(
            name, set_span_in_context(self._server), SpanKind.CLIENT, attributes
        )

    def propagation(self) -> dict[str, str]:
        """W3C headers naming the innermost open span as parent; empty when not traced."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(self._call or self._server))
        return carrier

    def end_call(self, attributes: Attributes, error_type: str) -> None:
        """End the call's span, as an error when `error_type` is not empty."""
        span, self._call = self._call, None
        if span is not None:
            span.set_attributes(attributes)
            _close(span, error_type)

    def end(self, status: int, error_type: str) -> None:
        """End the server span; only a 5xx or a broken stream makes it an error."""
        self.end_call({}, error_type)
        self._server.set_attribute(HTTP_RESPONSE_STATUS_CODE, status)
        # HTTP conventions: a 4xx is not an error of the server span, and a 5xx is its own type.
        _close(self._server, "" if 400 <= status < 500 else str(status) if status >= 500 else error_type)


NO_SPANS: Final = RequestSpans()


class StageSpan:
    """Ends a span with its block; records an exception's type, never its message."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> None:
        """The span has started; stages do not get it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self._span, kind.__name__ if kind is not None else "")


def request_attributes(body: Mapping[str, object]) -> dict[str, str | bool | int | float]:
    """The gen_ai.request.* attributes of a request body: numbers and `stream`, nothing else."""
    found: dict[str, str | bool | int | float] = {}
    for field, (attribute, kind) in REQUEST_FIELDS.items():
        value = body.get(field)
        # `type is`, because True is an int. The bound is that of OTLP's int64; NaN fails it too.
        if (type(value) is int or type(value) is float) and abs(value) < MAX_NUMBER:
            found[attribute] = kind(value)
    if body.get("stream") is True:
        found[REQUEST_STREAM] = True
    return found


def place_of(url: str, model: str = "") -> dict[str, str | int]:
    """The attributes of an upstream, for `start_call`. `model`: its own name for what answers."""
    parts = urlsplit(url.partition(" ")[0])
    found: dict[str, str | int] = {REQUEST_MODEL: model} if model else {}
    if parts.hostname:
        found |= {SERVER_ADDRESS: parts.hostname, SERVER_PORT: parts.port or _PORTS[parts.scheme]}
    return found


def _close(span: Span, error_type: str) -> None:
    """End `span`; a non-empty `error_type` makes it an error."""
    if error_type:
        span.set_attribute(ERROR_TYPE, error_type)
        span.set_status(StatusCode.ERROR)
    span.end()


def _client_retries(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """How often the client's SDK says that it has tried before; "" where it does not say so."""
    value = next((value for name, value in headers if name == b"x-stainless-retry-count"), b"")
    return value.decode() if value.isdigit() and len(value) <= 3 else ""


def _inbound(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """The caller's trace context; empty when there is none or it is malformed."""
    carrier: dict[str, str] = {}
    for name, value in headers:
        if name in _W3C_FIELDS:
            carrier[name.decode()] = value.decode("latin-1")
    # An empty Context, not the current one: only the caller's span may become the parent.
    return _W3C.extract(carrier, Context())

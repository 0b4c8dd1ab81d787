"""Names follow the conventions, parents are correct, and no caller's text becomes an attribute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import (
    error_attributes,
    http_attributes,
    server_attributes,
    url_attributes,
)
from opentelemetry.trace import SpanKind, StatusCode

from gateway.telemetry import spans
from gateway.telemetry.spans import NO_SPANS, RecordedSpans, request_attributes

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONVENTIONS = (gen_ai_attributes, http_attributes, url_attributes, error_attributes, server_attributes)
ROUTE = "/v1/chat/completions"


class Recorder:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._tracer = provider.get_tracer("test")

    def begin(self, *headers: tuple[bytes, bytes], method: str = "POST", route: str = ROUTE) -> RecordedSpans:
        return RecordedSpans(self._tracer, method, route, headers)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_names_are_those_of_the_conventions() -> None:
    known = {
        value
        for module in (
            gen_ai_attributes,
            http_attributes,
            url_attributes,
            error_attributes,
            server_attributes,
        )
        for value in vars(module).values()
        if isinstance(value, str)
    }
    ours = {
        v for k, v in vars(spans).items() if k.isupper() and isinstance(v, str) and re.match(r"[a-z_]+\.", v)
    }
    ours |= {name for name, _ in spans.REQUEST_FIELDS.values()}
    assert len(ours) > 20
    assert {name for name in ours if not name.startswith("penstock.")} <= known
    standard = {v.value for v in gen_ai_attributes.GenAiOperationNameValues}
    assert set(spans.OPERATIONS.values()) - {"rerank"} <= standard  # which has no name for that one


def test_server_span_is_the_parent_of_stage_and_call(recorder: Recorder) -> None:
    request = recorder.begin((b"traceparent", PARENT), (b"tracestate", b"vendor=x"))
    with request.stage(spans.STAGE_AUTHORIZE):
        pass
    request.start_call("chat", "pico", spans.PROVIDER_OURS, {"temperature": 0, "stream": True})
    headers = request.propagation()
    request.end_call({spans.OUTPUT_TOKENS: 3}, "")
    request.end(200, "")
    server, stage, call = (recorder.spans[n] for n in ("POST /v1/chat/completions", "authorize", "chat pico"))
    assert server.kind is SpanKind.SERVER and call.kind is SpanKind.CLIENT
    assert server.parent is not None and format(server.parent.span_id, "016x") == "b7ad6b7169203331"
    assert {format(s.context.trace_id, "032x") for s in (server, stage, call)} == {PARENT.decode()[3:35]}
    assert stage.parent == server.context and call.parent == server.context
    assert headers["traceparent"] == f"00-{PARENT.decode()[3:35]}-{call.context.span_id:016x}-01"
    assert headers["tracestate"] == "vendor=x"
    assert call.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": "pico",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.usage.output_tokens": 3,
        "penstock.model": "pico",
    }
    assert server.attributes is not None
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["http.route"] == ROUTE
    assert server.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("status", "is_error"), [(200, True), (400, False), (429, False), (499, False), (500, True), (503, True)]
)
def test_only_our_fault_marks_the_server_span(recorder: Recorder, status: int, is_error: bool) -> None:
    request = recorder.begin()
    request.start_call("chat", "pico", spans.PROVIDER_OURS, {})
    request.end(status, "SomeError")
    server, call = recorder.spans["POST /v1/chat/completions"], recorder.spans["chat pico"]
    assert (server.status.status_code is StatusCode.ERROR) is is_error
    assert call.status.status_code is StatusCode.ERROR  # also when the client caused it
    assert call.attributes is not None and call.attributes["error.type"] == "SomeError"


def test_a_stage_that_raises_is_marked_by_type_alone(recorder: Recorder) -> None:
    request = recorder.begin()
    with pytest.raises(ValueError, match="secret"), request.stage("choose model"):
        raise ValueError("the caller's secret words")
    span = recorder.spans["choose model"]
    assert span.attributes is not None and span.attributes["error.type"] == "ValueError"
    assert "secret" not in span.to_json()


@pytest.mark.parametrize(
    "bad",
    [b"", b"00", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", b"\xff\xfe", PARENT + b"-extra", b"0" * 5000],
)
def test_a_malformed_traceparent_starts_a_new_trace(recorder: Recorder, bad: bytes) -> None:
    recorder.begin((b"traceparent", bad)).end(200, "")
    assert recorder.spans["POST /v1/chat/completions"].parent is None


def test_unknown_paths_and_methods_do_not_become_names(recorder: Recorder) -> None:
    recorder.begin(method="BREW", route="").end(405, "")
    recorder.begin(method="GET", route="").end(404, "")
    assert set(recorder.spans) == {"HTTP", "GET"}
    assert recorder.spans["HTTP"].attributes == {
        "http.request.method": "_OTHER",
        "url.scheme": "http",
        "http.response.status_code": 405,
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from([*spans.REQUEST_FIELDS, "stream", "stop", "user"]), st.text() | st.none())
)
def test_text_never_becomes_an_attribute(body: dict[str, object]) -> None:
    assert request_attributes(body) == {}


def test_request_attributes_have_their_types() -> None:
    body = {"n": 2, "seed": 7, "top_p": 1, "stop": ["the caller's words"], "stream": True, "top_k": True}
    assert request_attributes(body) == {
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.seed": 7,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.stream": True,
    }


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400])
def test_absurd_numbers_do_not_raise(number: float) -> None:
    request_attributes({"seed": number, "temperature": number})


def test_without_tracing_everything_is_a_no_op() -> None:
    NO_SPANS.annotate({"a": "b"})
    with NO_SPANS.stage("authorize"):
        NO_SPANS.start_call("chat", "m", "p", {})
    assert NO_SPANS.propagation() == {}
    NO_SPANS.end_call({}, "X")
    NO_SPANS.end(200, "")


@pytest.mark.parametrize(
    ("value", "expected"), [(b"2", "2"), (b"", None), (b"-1", None), (b"9999", None), (b"x", None)]
)
def test_the_clients_own_retries_are_recorded(recorder: Recorder, value: bytes, expected: str | None) -> None:
    recorder.begin((b"x-stainless-retry-count", value)).end(200, "")
    attributes = recorder.spans["POST /v1/chat/completions"].attributes
    assert attributes is not None and attributes.get(spans.CLIENT_RETRIES) == expected


def test_the_page_names_the_convention_and_each_attribute_of_ours() -> None:
    page = Path(spans.__file__).with_name("README.md").read_text().partition("## Traces")[2]
    ours = {each for each in vars(spans).values() if isinstance(each, str) and each.startswith("penstock.")}
    assert set(re.findall(r"`(penstock\.[a-z._]+)`", page)) == ours
    assert f"conventions {spans.SCHEMA_URL.rpartition('/')[2]}," in page


def test_an_upstream_is_named_as_it_names_itself(recorder: Recorder) -> None:
    request = recorder.begin()
    request.start_call("chat", "fast", "openai", {}, spans.place_of("https://api.example.com/v1", "gpt-x"))
    request.end_call({}, "429")
    request.end(429, "RateLimited")
    call = recorder.spans["chat gpt-x"]
    assert call.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "penstock.model": "fast",
        "server.address": "api.example.com",
        "server.port": 443,
        "error.type": "429",
    }


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://h:81/v1 with KEY", ("h", 81)),
        ("http://[::1]/v1", ("::1", 80)),
        ("https://u:p@h", ("h", 443)),
        ("", None),
    ],
)
def test_places(url: str, found: tuple[str, int] | None) -> None:
    place = spans.place_of(url)
    assert (found is None and not place) or (place["server.address"], place["server.port"]) == found


def test_a_link_leads_to_the_other_request(recorder: Recorder) -> None:
    request = recorder.begin()
    request.link(PARENT.decode())
    request.end(200, "")
    [link] = recorder.spans["POST /v1/chat/completions"].links
    assert format(link.context.span_id, "016x") == PARENT.decode().split("-")[2]

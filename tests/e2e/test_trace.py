"""One request, one trace, from the HTTP server span down to the engine's decode."""

from __future__ import annotations

import itertools
import secrets
import time

import httpx
import pytest

from tests.e2e.collector import HttpCollector, ReceivedSpan
from tests.e2e.conftest import MODEL

INTERNAL, SERVER, CLIENT = 1, 2, 3
ENGINE_SPANS = ("engine.queued", "engine.prefill", "engine.decode")
GRACE_S = 0.005  # two processes, one clock: spans of the engine are built from monotonic time


def traced_chat(http: httpx.Client, **body: object) -> tuple[str, str, httpx.Response]:
    trace_id, caller_id = secrets.token_hex(16), secrets.token_hex(8)
    headers = {"traceparent": f"00-{trace_id}-{caller_id}-01", "tracestate": "vendor=value"}
    response = http.post(
        "/v1/chat/completions",
        json={"model": MODEL, "messages": [{"role": "user", "content": "What is 3 + 4?"}]} | body,
        headers=headers | {"cache-control": "no-store"},  # an answer from the cache has no engine spans
    )
    return trace_id, caller_id, response


def trace_of(collector: HttpCollector, trace_id: str, *names: str) -> dict[str, ReceivedSpan]:
    """The spans of one trace by name, once all of `names` have arrived."""

    def complete(spans: list[ReceivedSpan]) -> bool:
        return set(names) <= {span.name for span in spans if span.trace_id == trace_id}

    return {span.name: span for span in collector.wait_for(complete) if span.trace_id == trace_id}


@pytest.mark.parametrize("stream", [False, True])
def test_the_whole_tree(http: httpx.Client, collector: HttpCollector, stream: bool) -> None:
    before_s = time.time()
    trace_id, caller_id, response = traced_chat(
        http, stream=stream, temperature=0, max_tokens=6, ignore_eos=True, stop=["the caller's stop"]
    )
    after_s = time.time()
    assert response.status_code == 200
    server_name, call_name = "POST /v1/chat/completions", f"chat {MODEL}"
    spans = trace_of(collector, trace_id, server_name, call_name, *ENGINE_SPANS)
    server, call = spans[server_name], spans[call_name]

    assert server.parent_id == caller_id and server.kind == SERVER and server.service == "penstock"
    assert server.trace_state == "vendor=value"
    assert call.parent_id == server.span_id and call.kind == CLIENT
    for name in ("authorize", "choose model"):
        assert spans[name].parent_id == server.span_id and spans[name].kind == INTERNAL
    for name in ENGINE_SPANS:
        assert spans[name].parent_id == call.span_id and spans[name].kind == INTERNAL, name
        assert spans[name].service != server.service  # recorded by another process
    assert {span.status for span in spans.values()} <= {0, 1}

    assert server.attributes["http.request.method"] == "POST"
    assert server.attributes["http.route"] == "/v1/chat/completions"
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["penstock.request.id"] == response.headers["x-request-id"]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.output_tokens": 6,
    }
    assert {name: call.attributes.get(name) for name in expected} == expected
    assert spans["engine.decode"].attributes["penstock.engine.generated_tokens"] == 6
    prefill = spans["engine.prefill"].attributes
    assert prefill["penstock.engine.prompt_tokens"] == call.attributes["gen_ai.usage.input_tokens"]
    assert {"penstock.engine.cached_tokens", "penstock.engine.chunks"} <= set(prefill)

    in_order = [server, call, *(spans[name] for name in ENGINE_SPANS)]
    assert before_s - GRACE_S <= server.start_s and server.end_s <= after_s + 30.0  # a busy machine
    for parent, child in [(server, call), *((call, spans[name]) for name in ENGINE_SPANS)]:
        assert parent.start_s - GRACE_S <= child.start_s and child.end_s <= parent.end_s + GRACE_S, child.name
    assert all(span.start_s <= span.end_s for span in in_order)
    for earlier, later in itertools.pairwise(ENGINE_SPANS):
        assert abs(spans[earlier].end_s - spans[later].start_s) < GRACE_S


def test_the_engine_accounts_for_the_call(http: httpx.Client, collector: HttpCollector) -> None:
    trace_id, _, _ = traced_chat(http, max_tokens=60, ignore_eos=True)
    spans = trace_of(collector, trace_id, f"chat {MODEL}", *ENGINE_SPANS)
    call = spans[f"chat {MODEL}"]
    inside_s = sum(spans[name].end_s - spans[name].start_s for name in ENGINE_SPANS)
    assert inside_s >= 0.6 * (call.end_s - call.start_s)


def test_a_stop_string_leaves_the_engines_spans(http: httpx.Client, collector: HttpCollector) -> None:
    more = {"max_tokens": 300, "ignore_eos": True, "temperature": 0}
    _, _, response = traced_chat(http, **more)
    text = response.json()["choices"][0]["message"]["content"]
    trace_id, _, response = traced_chat(http, **more, stop=text[8:16])
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    spans = trace_of(collector, trace_id, f"chat {MODEL}", *ENGINE_SPANS)
    decode = spans["engine.decode"]
    assert decode.parent_id == spans[f"chat {MODEL}"].span_id and decode.end_s > decode.start_s
    assert 0 < decode.attributes["penstock.engine.generated_tokens"] < 300
    assert decode.attributes["gen_ai.response.finish_reasons"] == ["abort"]


def test_no_text_of_the_caller_is_in_any_span(http: httpx.Client, collector: HttpCollector) -> None:
    word = secrets.token_hex(12)
    messages = [{"role": "system", "content": f"s {word}"}, {"role": "user", "content": f"u {word}"}]
    trace_id, _, _ = traced_chat(
        http, messages=messages, stop=[word], user=word, metadata={"k": word}, max_tokens=3
    )
    trace_of(collector, trace_id, "POST /v1/chat/completions", *ENGINE_SPANS)
    assert word.encode() not in collector.payload


def test_an_unsampled_caller_is_respected(http: httpx.Client, collector: HttpCollector) -> None:
    trace_id = secrets.token_hex(16)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    headers = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-00", "cache-control": "no-store"}
    assert http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    later, _, _ = traced_chat(
        http, max_tokens=2
    )  # exported later: when it has arrived, the first one would have
    trace_of(collector, later, "POST /v1/chat/completions", *ENGINE_SPANS)
    assert trace_id not in {span.trace_id for span in collector.spans}


def test_without_a_traceparent_the_trace_starts_here(http: httpx.Client, collector: HttpCollector) -> None:
    response = http.get("/v1/models")
    request_id = response.headers["x-request-id"]

    def arrived(spans: list[ReceivedSpan]) -> bool:
        return any(span.attributes.get("penstock.request.id") == request_id for span in spans)

    (span,) = (
        s for s in collector.wait_for(arrived) if s.attributes.get("penstock.request.id") == request_id
    )
    assert (span.name, span.parent_id, span.kind) == ("GET /v1/models", "", SERVER)


def test_refusals_are_traced_with_their_status(http: httpx.Client, collector: HttpCollector) -> None:
    trace_id, _, response = traced_chat(http, temperature=99)
    assert response.status_code == 400
    server = trace_of(collector, trace_id, "POST /v1/chat/completions")["POST /v1/chat/completions"]
    assert server.attributes["http.response.status_code"] == 400
    assert server.status == 0  # HTTP conventions: a 4xx is not an error of the server span


def test_an_unreachable_upstream_marks_both_spans(http: httpx.Client, collector: HttpCollector) -> None:
    trace_id, _, response = traced_chat(http, model="gone")
    assert response.status_code in (502, 503)
    spans = trace_of(collector, trace_id, "POST /v1/chat/completions", "chat gone")
    for span in (spans["POST /v1/chat/completions"], spans["chat gone"]):
        assert span.status == 2 and span.attributes["error.type"] in ("502", "503")

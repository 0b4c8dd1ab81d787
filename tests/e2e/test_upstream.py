"""An OpenAI-compatible upstream: answers relayed, errors mapped, one trace."""

from __future__ import annotations

import secrets

import httpx
import openai
import pytest

from tests.e2e.collector import HttpCollector
from tests.e2e.server import Server
from tests.e2e.test_openai_sdk import ask, text_of
from tests.e2e.test_trace import trace_of
from tests.e2e.upstream import Upstream


def test_an_answer_is_relayed(client: openai.OpenAI, upstream: Upstream) -> None:
    answer = client.chat.completions.create(model="remote", messages=ask("good day"), temperature=0.5)
    assert answer.choices[0].message.content == "echo: good day"
    assert answer.usage is not None and answer.usage.total_tokens == 8
    assert upstream.seen[-1].body["model"] == "far-away"
    assert upstream.seen[-1].body["temperature"] == 0.5


def test_a_stream_is_relayed(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="remote",
            messages=ask("good day"),
            stream=True,
            stream_options=options,  # type: ignore[call-overload]
        )
    )
    assert text_of(chunks) == "echo: good day"
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 8


def test_our_key_is_not_forwarded(client: openai.OpenAI, upstream: Upstream, server: Server) -> None:
    client.chat.completions.create(model="remote", messages=ask("x"))
    assert server.api_key not in str(upstream.seen[-1].headers)


@pytest.mark.parametrize(("status", "seen"), [(400, 400), (429, 429), (500, 500), (401, 502), (503, 503)])
def test_its_errors_are_mapped(http: httpx.Client, status: int, seen: int) -> None:
    body = {"model": "remote", "messages": ask(f"status {status}")}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == seen
    error = response.json()["error"]
    assert error["message"] and error["type"]
    if status == 429:
        assert response.headers["retry-after"] == "7"


def test_a_truncated_stream_ends_with_an_error_event(http: httpx.Client) -> None:
    response = http.post(
        "/v1/chat/completions", json={"model": "remote", "messages": ask("cut"), "stream": True}
    )
    assert response.status_code == 200
    events = [line for line in response.text.splitlines() if line.startswith("data: ")]
    assert any('"error"' in event for event in events[-2:]), events


def test_an_unreachable_upstream_is_named(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", json={"model": "gone", "messages": ask("x")})
    assert response.status_code == 502
    assert "gone" in response.json()["error"]["message"]


def test_the_trace_continues_in_the_upstream(
    http: httpx.Client, upstream: Upstream, collector: HttpCollector
) -> None:
    trace_id = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    http.post("/v1/chat/completions", json={"model": "remote", "messages": ask("x")}, headers=headers)
    spans = trace_of(collector, trace_id, "chat far-away", "POST /v1/chat/completions")
    call = spans["chat far-away"]
    assert upstream.seen[-1].headers["traceparent"] == f"00-{trace_id}-{call.span_id}-01"
    known = call.attributes
    assert known["gen_ai.usage.output_tokens"] == 3
    assert "gen_ai.usage.cache_read.input_tokens" not in known, "it has not said how many"
    assert (known["gen_ai.provider.name"], known["penstock.model"]) == ("openai", "remote")
    assert (known["gen_ai.request.model"], known["gen_ai.response.model"]) == ("far-away", "remote")
    assert known["server.address"] == "127.0.0.1" and f":{known['server.port']}/" in upstream.base_url


def test_the_trace_counts_attempts(http: httpx.Client, upstream: Upstream, collector: HttpCollector) -> None:
    trace_id = secrets.token_hex(16)
    headers = {
        "traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01",
        "x-stainless-retry-count": "1",
    }
    text = f"fault 503 {upstream.num_seen('far-away') + 1}"
    http.post("/v1/chat/completions", json={"model": "remote", "messages": ask(text)}, headers=headers)
    request = trace_of(collector, trace_id, "POST /v1/chat/completions")["POST /v1/chat/completions"]
    assert request.attributes["penstock.attempts"] == "2"
    assert request.attributes["penstock.client.retry_count"] == "1"

"""Rules and fallbacks through the real server, with the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.server import Server, free_port
from tests.e2e.test_openai_sdk import ask, text_of
from tests.e2e.upstream import Upstream

POLICIES = """\
models:
  first: {{upstream: {{base_url: "{url}", model: far-first}}}}
  second: {{upstream: {{base_url: "{url}", model: far-second}}}}
  down: {{upstream: {{base_url: "http://127.0.0.1:{closed}/v1"}}}}
routing:
  expose: true
  headers: [x-region]
  rules:
    - {{name: residency, when: "headers['x-region'] == 'eu' && request.model == 'first'",
       refuse: {{message: This model is not in the EU., status: 451}}}}
routes:
  auto:
    rules:
      - {{name: long, when: request.num_tokens_estimate > 100, model: second}}
    model: first
    parameters: {{clamp: {{max_tokens: {{max: 50}}}}}}
    system: Be brief.
  resilient: {{model: down, fallback: {{unavailable: [second], server_error: [second]}}}}
  fragile: {{model: first, fallback: {{any: [second]}}}}
"""


@pytest.fixture(scope="module")
def routed(
    start_module_server: StartServer, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """A server with rules, all of whose models are the scripted upstream."""
    folder: Path = tmp_path_factory.mktemp("policies")
    (folder / "p.yaml").write_text(POLICIES.format(url=upstream.base_url, closed=free_port()))
    return start_module_server("--policies", str(folder))


@pytest.fixture
def chat(routed: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=routed.base_url, api_key="-", max_retries=0, timeout=30) as client:
        yield client


def test_a_rule_decides_and_the_answer_says_so(chat: openai.OpenAI, upstream: Upstream) -> None:
    raw = chat.chat.completions.with_raw_response.create(model="auto", messages=ask("x" * 500))
    assert upstream.seen[-1].body["model"] == "far-second"
    assert raw.headers["x-penstock-route"] == "auto" and raw.headers["x-penstock-model"] == "second"
    assert raw.headers["x-penstock-reason"] == "route auto, rule 1 (long)"
    assert raw.headers["x-penstock-policy"]


def test_a_routes_changes_reach_the_model(chat: openai.OpenAI, upstream: Upstream) -> None:
    chat.chat.completions.create(model="auto", messages=ask("hi"), max_tokens=5000)
    body = upstream.seen[-1].body
    assert body["model"] == "far-first" and body["max_tokens"] == 50
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_a_refusal_is_an_error_in_openais_shape(chat: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        chat.chat.completions.create(model="first", messages=ask("hi"), extra_headers={"x-region": "eu"})
    assert caught.value.status_code == 451 and caught.value.code == "refused_by_policy"
    assert "not in the EU" in caught.value.message


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_model_that_is_down_is_replaced(
    routed: Server, chat: openai.OpenAI, upstream: Upstream, is_stream: bool
) -> None:
    body = {"model": "resilient", "messages": ask("hi"), "stream": is_stream}
    response = httpx.post(routed.base_url + "/chat/completions", json=body)
    assert response.status_code == 200 and "echo" in response.text
    assert upstream.seen[-1].body["model"] == "far-second"
    assert response.headers["x-penstock-model"] == "second"
    assert response.headers["x-penstock-reason"] == "route resilient, default, down: unavailable"


# 429 is the last: until its `retry-after` has passed the model would not be asked at all.
@pytest.mark.parametrize("status", [500, 503, 429])
def test_the_last_models_error_is_sent(routed: Server, upstream: Upstream, status: int) -> None:
    before = len(upstream.seen)
    body = {"model": "fragile", "messages": ask(f"status {status}")}
    response = httpx.post(routed.base_url + "/chat/completions", json=body)
    assert response.status_code == status
    assert [seen.body["model"] for seen in upstream.seen[before:]] == ["far-first", "far-second"]
    assert response.headers["x-penstock-route"] == "fragile"
    assert response.headers["x-penstock-model"] == "second"
    assert response.headers["x-penstock-reason"].startswith("route fragile, default, first: ")


def test_a_model_that_cannot_be_reached_is_named(routed: Server) -> None:
    body = {"model": "down", "messages": ask("hi")}
    response = httpx.post(routed.base_url + "/chat/completions", json=body)
    assert response.status_code == 502 and response.headers["x-penstock-model"] == "down"
    assert response.headers["x-penstock-reason"] == "requested"


def test_a_stream_that_has_begun_is_never_restarted(routed: Server, upstream: Upstream) -> None:
    before = len(upstream.seen)
    body = {"model": "fragile", "messages": ask("cut"), "stream": True}
    response = httpx.post(routed.base_url + "/chat/completions", json=body)
    assert response.status_code == 200 and '"error"' in response.text
    assert len(upstream.seen) == before + 1


def test_streams_follow_rules(chat: openai.OpenAI) -> None:
    chunks = list(chat.chat.completions.create(model="auto", messages=ask("hello"), stream=True))
    assert text_of(chunks) == "echo: hello"


def test_a_tenants_limit_is_openais_error(
    start_server: StartServer, upstream: Upstream, tmp_path: Path
) -> None:
    price = "{input_usd_per_million_tokens: 1000000, output_usd_per_million_tokens: 1000000}"
    (tmp_path / "p.yaml").write_text(
        f"models: {{far: {{upstream: {{base_url: '{upstream.base_url}'}}, price: {price}}}}}\n"
        "tiers: {default: {models: [auto], limits: {requests_per_minute: 50, usd_per_day: 20}}}\n"
        "routes:\n  auto:\n    rules: [{when: 'tenant.spent_usd > 7.0', model: far, system: Be cheap.}]\n"
        "    model: far\n"
    )
    server = start_server("--policies", str(tmp_path))
    with openai.OpenAI(base_url=server.base_url, api_key="-", max_retries=0, timeout=30) as client:
        with pytest.raises(openai.PermissionDeniedError, match="may ask for: auto"):
            client.chat.completions.create(model="far", messages=ask("hi"))
        raw = client.chat.completions.with_raw_response.create(model="auto", messages=ask("hi"))
        assert raw.headers["x-ratelimit-remaining-requests"] == "49"
        assert len(upstream.seen[-1].body["messages"]) == 1  # each answer has 8 tokens and costs 8 USD
        client.chat.completions.create(model="auto", messages=ask("hi"))
        assert upstream.seen[-1].body["messages"][0]["content"] == "Be cheap."
        client.chat.completions.create(model="auto", messages=ask("hi"))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="auto", messages=ask("hi"))
        assert caught.value.code == "budget_exceeded" and "20 USD per day" in caught.value.message

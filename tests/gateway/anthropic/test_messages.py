"""No body gets a 5xx from /v1/messages, and every error has Anthropic's envelope."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from anthropic.types import ErrorResponse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.tokenizer import Tokenizer
from gateway.anthropic.request import MessagesRequest
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import ModelEntry, Policies
from policies.upstream import UpstreamModel, UpstreamTarget
from tests.gateway.conftest import MakeApp, http_client
from tests.gateway.providers.upstream.scripted_server import Seen, response, serving, write_all
from tests.gateway.scripted_engine import ScriptedEngine, says

SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
PATHS = ("/v1/messages", "/v1/messages/count_tokens")
BODY = {"model": "ours", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi."}]}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("ours"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
KINDS = st.sampled_from(["text", "image", "document", "tool_use", "tool_result", "thinking"])
BLOCKS = st.fixed_dictionaries(
    {"type": KINDS | VALUES},
    optional={
        name: VALUES for name in ("text", "source", "id", "input", "content", "tool_use_id", "thinking")
    },
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | VALUES},
    optional={"content": st.text(max_size=9) | st.lists(BLOCKS | VALUES, max_size=3) | VALUES},
)


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        found = ErrorResponse.model_validate_json(response.content)
        assert found.error.message and found.request_id == response.headers["request-id"]


async def post(http: httpx.AsyncClient, path: str, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await http.post(path, content=content, headers={"content-type": "application/json"})


@SETTINGS
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=60) | VALUES)
async def test_any_body(engine_http: httpx.AsyncClient, path: str, body: object) -> None:
    check(await post(engine_http, path, body))


@SETTINGS
@given(change=st.dictionaries(st.sampled_from(MessagesRequest.__struct_fields__), VALUES, max_size=2))
async def test_any_values(engine_http: httpx.AsyncClient, change: dict[str, Any]) -> None:
    check(await post(engine_http, PATHS[0], BODY | change))


@SETTINGS
@given(messages=st.lists(MESSAGES, max_size=3))
async def test_any_messages(engine_http: httpx.AsyncClient, messages: list[dict[str, Any]]) -> None:
    check(await post(engine_http, PATHS[0], BODY | {"messages": messages}))


async def test_a_model_without_a_tokenizer_counts_nothing(make_app: MakeApp) -> None:
    async with http_client(make_app()) as http:
        body = {"model": "theirs", "messages": BODY["messages"]}
        response = await http.post(PATHS[1], json=body)
    check(response)
    assert response.status_code == 404 and "no tokenizer" in response.text


@pytest.mark.parametrize("path", PATHS)
async def test_an_unknown_version_is_refused(engine_http: httpx.AsyncClient, path: str) -> None:
    response = await engine_http.post(path, json=BODY, headers={"anthropic-version": "2031-01-01"})
    check(response)
    assert response.status_code == 400 and "anthropic-version" in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_beyond_the_context_is_the_contexts(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    """Agents send the limits of Anthropic's models, which the API wants in every request."""
    engine.script = says(tokenizer.encode("word " * 200), finish="length")
    response = await engine_http.post(PATHS[0], json=BODY | {"max_tokens": 32_000, "stream": stream})
    assert response.status_code == 200
    assert '"stop_reason":"model_context_window_exceeded"' in response.text
    (request,) = engine.requests
    assert request.params.max_tokens == 256 - len(request.prompt_token_ids)
    too_long = BODY | {"messages": [{"role": "user", "content": "word " * 200}]}
    assert (await engine_http.post(PATHS[0], json=too_long)).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_edits_that_clear_are_ignored_and_named(engine_http: httpx.AsyncClient, stream: bool) -> None:
    """Agents ask for them in every request."""
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "clear_tool_uses_20250919"}]
    body = BODY | {"context_management": {"edits": edits}, "stream": stream}
    response = await engine_http.post(PATHS[0], json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-penstock-ignored-fields"] == "context_management"


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
TEXT = {"type": "text", "text": "Look."}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"messages": [{"role": "user", "content": [TEXT, IMAGE]}]}, "Images ('image' blocks)"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": ""}]}
                ]
            },
            "Invalid value for 'messages': ",
        ),
    ],
)
async def test_errors_after_the_translation_have_the_apis_names(
    engine_http: httpx.AsyncClient, path: str, change: dict[str, Any], expected: str
) -> None:
    body = {name: value for name, value in (BODY | change).items() if name in change or path == PATHS[0]}
    response = await post(engine_http, path, body | {"model": "ours"})
    check(response)
    assert response.json()["error"]["message"].startswith(expected), response.text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"output_config": {"effort": "high"}}, "'output_config.effort' asks"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "'thinking' asks"),
    ],
)
async def test_errors_of_the_effort_name_where_it_is_from(
    engine_http: httpx.AsyncClient, change: dict[str, Any], expected: str
) -> None:
    response = await post(engine_http, PATHS[1], {"model": "ours", "messages": BODY["messages"]} | change)
    assert response.json()["error"]["message"].startswith(expected), response.text


async def test_a_count_is_asked_of_a_target_that_works() -> None:
    """One of two targets refuses connections, and a count of the other one is first refused too."""
    seen = 0

    async def script(writer: asyncio.StreamWriter, asked: Seen) -> None:
        nonlocal seen
        seen += 1
        assert asked.head.startswith("POST /v1/messages/count_tokens ")
        body = b'{"error": {"message": "x"}}' if seen == 1 else b'{"input_tokens": 7}'
        await write_all(writer, [response(body, 503 if seen == 1 else 200, connection="close")])
        writer.close()

    async with serving(script) as server:
        targets = [UpstreamTarget(base_url="http://127.0.0.1:9/v1"), UpstreamTarget()]
        upstream = UpstreamModel(base_url=server.base_url, api="anthropic", targets=targets)
        policies = Policies(models={"ours": ModelEntry(upstream=upstream)})
        async with http_client(build_app(Settings(), policies)) as http:
            found = [await post(http, PATHS[1], BODY) for _ in range(6)]
    # The first one may meet the refusing target before and after the 503: then its attempts are used up.
    assert [(each.status_code, each.json()) for each in found[1:]] == [(200, {"input_tokens": 7})] * 5

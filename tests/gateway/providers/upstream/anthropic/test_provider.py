"""The provider over a socket: requests equal to the official client's, answers, errors, and closing."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from gateway.errors import ApiError, InvalidRequest
from gateway.providers.base import ModelCall
from gateway.providers.upstream.gemini.contents import SIGNATURE as GEMINI
from gateway.requests.parse import typed
from gateway.requests.reasoning_details import REDACTED, details
from gateway.requests.types import CompletionRequest, EmbeddingRequest
from tests.gateway.providers.upstream.anthropic.calls import (
    EVENTS,
    EXPECTED,
    MESSAGE,
    call,
    collected,
    deltas,
    provider,
    shown,
)
from tests.gateway.providers.upstream.provider_calls import KEY, streaming
from tests.gateway.providers.upstream.scripted_server import always, response, serving

pytestmark = pytest.mark.usefixtures("transport", "no_secret_in_the_log")

ANSWER = response(json.dumps(MESSAGE).encode())
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
PNG = "iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL_LOOP: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "reasoning_details": details([("hm", "signed"), ("", REDACTED + "x"), ("", GEMINI + "x")]),
        "tool_calls": [CALL],
    },
    {"role": "tool", "tool_call_id": "toolu_1", "content": "2"},
    {"role": "user", "content": "And?"},
]
SDK_LOOP: Any = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What?"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "signed"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "2"}]},
            {"type": "text", "text": "And?"},
        ],
    },
]
TEXT: Any = [{"role": "user", "content": [{"type": "text", "text": "é"}]}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
SDK_TOOL = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": ({"max_tokens": 5}, {"max_tokens": 5, "messages": TEXT}),
    "no limit": ({}, {"max_tokens": 8192, "messages": TEXT}),
    "stops and user": (
        {"stop": "END", "user": "u", "stream_options": None},
        {"max_tokens": 8192, "messages": TEXT, "stop_sequences": ["END"], "metadata": {"user_id": "u"}},
    ),
    "tool loop with thinking": (
        {"messages": TOOL_LOOP, "tools": [TOOL], "reasoning_effort": "minimal", "max_completion_tokens": 9},
        {
            "max_tokens": 9,
            "system": "Be brief.",
            "messages": SDK_LOOP,
            "tools": [SDK_TOOL],
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "low"},
        },
    ),
    "required tool": (
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {
            "max_tokens": 8192,
            "messages": TEXT,
            "tools": [SDK_TOOL],
            "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        },
    ),
    "no call of a tool": (
        {"tools": [TOOL], "tool_choice": "none"},
        {"max_tokens": 8192, "messages": TEXT, "tools": [SDK_TOOL], "tool_choice": {"type": "none"}},
    ),
    "schema, no reasoning": (
        {"response_format": FORMAT, "reasoning_effort": "none"},
        {
            "max_tokens": 8192,
            "messages": TEXT,
            "thinking": {"type": "disabled"},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
}


@pytest.mark.parametrize(("chat", "sdk"), CASES.values(), ids=CASES.keys())
async def test_requests_equal_the_official_clients(chat: dict[str, Any], sdk: dict[str, Any]) -> None:
    async with serving(always(ANSWER)) as server, provider(server) as ours:
        await ours.chat(call(**chat))
        theirs = anthropic.AsyncAnthropic(base_url=server.base_url.removesuffix("/v1"), api_key=KEY)
        async with theirs:
            await theirs.messages.create(model="there", **sdk)
        first, second = server.seen
    assert json.loads(first.body) == json.loads(second.body)
    assert first.head.split()[:2] == second.head.split()[:2] == ["POST", "/v1/messages"]
    assert first.headers["x-api-key"] == KEY and first.headers["anthropic-version"] == "2023-06-01"
    assert first.headers["x-request-id"] == "req_1" and first.headers["traceparent"] == "00-a-b-01"


@pytest.mark.parametrize(("chat", "sdk"), CASES.values(), ids=CASES.keys())
async def test_requests_to_count_equal_the_official_clients(
    chat: dict[str, Any], sdk: dict[str, Any]
) -> None:
    async with serving(always(response(b'{"input_tokens": 7}'))) as server, provider(server) as ours:
        assert await ours.count_tokens(call(**chat, stream=True, temperature=1)) == 7
        asked = {k: v for k, v in sdk.items() if k not in ("max_tokens", "stop_sequences", "metadata")}
        theirs = anthropic.AsyncAnthropic(base_url=server.base_url.removesuffix("/v1"), api_key=KEY)
        async with theirs:
            await theirs.messages.count_tokens(model="there", **asked)
        first, second = server.seen
    assert json.loads(first.body) == json.loads(second.body)
    assert first.head.split()[:2] == second.head.split()[:2] == ["POST", "/v1/messages/count_tokens"]


async def test_a_count_that_is_none_is_the_upstreams_fault() -> None:
    async with serving(always(response(b"{}"))) as server, provider(server) as ours:
        with pytest.raises(ApiError, match="no count of tokens"):
            await ours.count_tokens(call())


async def test_whole_and_streamed_answers() -> None:
    async with serving(always(ANSWER)) as server, provider(server) as ours:
        whole = await ours.chat(call())
        assert shown(collected(await deltas(whole))) == EXPECTED
        assert (whole.usage.prompt_tokens, whole.usage.cached_tokens) == (22, 16)
    pieces = [EVENTS[i : i + 50] for i in range(0, len(EVENTS), 50)]
    async with serving(streaming(*pieces)) as server, provider(server) as ours:
        answer = await ours.chat(call(stream=True, reasoning_effort="low"))
        assert answer.shows_reasoning
        assert shown(collected(await deltas(answer))) == EXPECTED
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (22, 9)
        assert json.loads(server.seen[0].body)["stream"] is True


async def test_a_stream_that_is_cut_is_an_error() -> None:
    async with serving(streaming(EVENTS[:-40])) as server, provider(server) as ours:
        answer = await ours.chat(call(stream=True))
        with pytest.raises(ApiError, match="before the answer was complete"):
            await deltas(answer)


async def test_closing_before_the_end_drops_the_connection() -> None:
    async with serving(streaming(EVENTS[:-40], end=b"")) as server, provider(server) as ours:
        answer = await ours.chat(call(stream=True))
        await anext(answer.deltas)
        await answer.deltas.aclose()  # type: ignore[attr-defined]
        assert await server.closed.get() == 1


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid_request_error", 400),
        (401, "authentication_error", 502),
        (404, "not_found_error", 404),
        (429, "rate_limit_error", 429),
        (500, "api_error", 500),
        (529, "overloaded_error", 503),
    ],
)
async def test_errors_keep_status_message_and_request_id(status: int, kind: str, expected: int) -> None:
    body = json.dumps({"type": "error", "error": {"type": kind, "message": f"Because {KEY}."}}).encode()
    reply = response(body, status, **{"retry-after": "7", "request-id": "req_theirs"})
    async with serving(always(reply)) as server, provider(server) as ours:
        with pytest.raises(ApiError) as caught:
            await ours.chat(call())
    assert caught.value.status == expected and KEY not in caught.value.message
    if status != 401:
        assert caught.value.message == "Because ***."
        assert caught.value.headers == {"retry-after": "7", "x-upstream-request-id": "req_theirs"}


async def test_a_stream_that_is_json_is_its_error() -> None:
    body = json.dumps({"type": "error", "error": {"type": "api_error", "message": "Oh."}}).encode()
    async with serving(always(response(body))) as server, provider(server) as ours:
        with pytest.raises(ApiError, match=r"Oh\."):
            await ours.chat(call(stream=True))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 1}, "seed"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"zz": 1}, "zz"),
        ({"messages": [{"role": "user", "content": "x", "zz": 1}]}, "messages[0].zz"),
        ({"messages": [{"role": "assistant", "content": "x", "audio": {"id": "x"}}]}, "messages[0].audio"),
    ],
)
async def test_what_the_api_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with serving(always(ANSWER)) as server, provider(server) as ours:
        with pytest.raises(InvalidRequest) as caught:
            await ours.chat(call(**fields))
        assert caught.value.param == param and server.seen == []


async def test_what_has_no_effect_is_named() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "high"}}
    messages = [{"role": "user", "name": "Ann", "content": [image]}]
    async with serving(always(ANSWER)) as server, provider(server) as ours:
        answer = await ours.chat(call(verbosity="low", n=1, logprobs=False, metadata={"a": "b"}))
        assert answer.ignored_fields == ["verbosity"]
        answer = await ours.chat(call(messages=messages))
        assert answer.ignored_fields == ["messages.content.image_url.detail", "messages.name"]


async def test_the_policy_asks_for_prompt_caching() -> None:
    async with serving(always(ANSWER)) as server, provider(server, prompt_caching=True) as ours:
        await ours.chat(call())
        assert json.loads(server.seen[0].body)["cache_control"] == {"type": "ephemeral"}


async def test_other_endpoints_are_refused() -> None:
    async with serving(always(ANSWER)) as server, provider(server) as ours:
        body = {"model": "here", "prompt": "x"}
        with pytest.raises(InvalidRequest, match="/v1/completions"):
            await ours.complete(ModelCall(typed(body, CompletionRequest), body, "r"))
        body = {"model": "here", "input": "x"}
        with pytest.raises(InvalidRequest, match="/v1/embeddings"):
            await ours.embed(ModelCall(typed(body, EmbeddingRequest), body, "r"))

"""The provider over a socket: requests equal to the official client's, answers, errors, and closing."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from google import genai

from gateway.errors import ApiError, InvalidRequest
from gateway.providers.base import ModelCall
from gateway.providers.upstream.gemini.contents import SIGNATURE as GEMINI
from gateway.requests.parse import typed
from gateway.requests.reasoning_details import details
from gateway.requests.types import CompletionRequest
from tests.gateway.providers.upstream.anthropic.calls import collected, deltas, shown
from tests.gateway.providers.upstream.gemini.calls import ANSWER, EVENTS, EXPECTED, call, provider
from tests.gateway.providers.upstream.provider_calls import KEY, streaming
from tests.gateway.providers.upstream.scripted_server import always, response, serving

pytestmark = pytest.mark.usefixtures("transport", "no_secret_in_the_log")

REPLY = response(json.dumps(ANSWER).encode())
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
STRICT = {**SCHEMA, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
PNG = "iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL_LOOP: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_details": details([("", GEMINI + "c2lnbmVk")]),
        "tool_calls": [CALL],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "2"},
]
SDK_LOOP = [
    {"role": "user", "parts": [{"text": "What?"}, {"inline_data": {"mime_type": "image/png", "data": PNG}}]},
    {
        "role": "model",
        "parts": [
            {
                "function_call": {"id": "call_1", "name": "add", "args": {"a": 1}},
                "thought_signature": "c2lnbmVk",
            }
        ],
    },
    {
        "role": "user",
        "parts": [{"function_response": {"id": "call_1", "name": "add", "response": {"output": "2"}}}],
    },
]
SDK_TOOL = {"name": "add", "description": "Adds.", "parameters_json_schema": SCHEMA}
CASES: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "text": ({}, "é", {}),
    "sampling": (
        {"temperature": 0, "top_p": 0.5, "top_k": 4, "seed": 7, "stop": "END", "max_tokens": 5, "n": 2,
         "presence_penalty": 0.5, "frequency_penalty": -0.5},
        "é",
        {"temperature": 0, "top_p": 0.5, "top_k": 4, "seed": 7, "stop_sequences": ["END"],
         "max_output_tokens": 5, "candidate_count": 2, "presence_penalty": 0.5, "frequency_penalty": -0.5},
    ),
    "tool loop with thinking": (
        {"messages": TOOL_LOOP, "tools": [TOOL], "reasoning_effort": "low", "max_completion_tokens": 9},
        SDK_LOOP,
        {
            "system_instruction": "Be brief.",
            "max_output_tokens": 9,
            "tools": [{"function_declarations": [SDK_TOOL]}],
            "thinking_config": {"thinking_level": "LOW", "include_thoughts": True},
        },
    ),
    "required tool": (
        {"tools": [TOOL], "tool_choice": "required"},
        "é",
        {
            "tools": [{"function_declarations": [SDK_TOOL]}],
            "tool_config": {"function_calling_config": {"mode": "ANY"}},
        },
    ),
    "strict tool": (
        {"tools": [{"type": "function", "function": {"name": "add", "parameters": STRICT, "strict": True}}]},
        "é",
        {
            "tools": [{"function_declarations": [{"name": "add", "parameters_json_schema": STRICT}]}],
            "tool_config": {"function_calling_config": {"mode": "VALIDATED"}},
        },
    ),
    "schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        "é",
        {"response_mime_type": "application/json", "response_json_schema": SCHEMA},
    ),
    "any json": (
        {"response_format": {"type": "json_object"}}, "é", {"response_mime_type": "application/json"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("chat", "contents", "config"), CASES.values(), ids=CASES.keys())
async def test_requests_equal_the_official_clients(
    chat: dict[str, Any], contents: object, config: dict[str, Any], stream: bool
) -> None:
    answer = {**ANSWER, "candidates": [{**ANSWER["candidates"][0], "index": i} for i in (0, 1)]}  # type: ignore[index]
    if chat.get("n") != 2:
        answer = ANSWER
    whole = json.dumps(answer).encode()
    script = streaming(b"data: %s\n\n" % whole) if stream else always(response(whole))
    async with serving(script) as server, provider(server) as ours:
        await deltas(await ours.chat(call(stream=stream, **chat)))
        asked = {"model": "gemini-3-there", "contents": contents, "config": config}
        await asyncio.to_thread(ask_with_the_sdk, server.base_url, asked, stream=stream)
        first, second = server.seen
    assert without_defaults(first.body) == without_defaults(second.body)
    assert first.head.split()[:2] == second.head.split()[:2]
    assert first.headers["x-goog-api-key"] == second.headers["x-goog-api-key"] == KEY
    assert first.headers["x-request-id"] == "req_1" and first.headers["traceparent"] == "00-a-b-01"


def ask_with_the_sdk(base_url: str, asked: dict[str, Any], *, stream: bool) -> None:
    options: Any = {"base_url": base_url.removesuffix("/v1"), "api_version": "v1"}
    with genai.Client(api_key=KEY, http_options=options) as client:
        if stream:
            list(client.models.generate_content_stream(**asked))
        else:
            client.models.generate_content(**asked)


def _upper(letter: re.Match[bytes]) -> bytes:
    return letter[1].upper()


def without_defaults(raw: bytes) -> dict[str, Any]:
    """The body without the empty config and the role of the system instruction, which mean nothing.

    The client sends some fields under their names in the protocol buffers; the API takes both.
    """
    camel_case = re.sub(rb'"[a-z]+(_[a-z]+)+":', lambda name: re.sub(rb"_([a-z])", _upper, name[0]), raw)
    body = json.loads(camel_case)
    body.get("systemInstruction", {}).pop("role", None)
    return {name: value for name, value in body.items() if value != {}}


async def test_whole_and_streamed_answers() -> None:
    async with serving(always(REPLY)) as server, provider(server) as ours:
        whole = await ours.chat(call())
        assert shown(collected(await deltas(whole))) == EXPECTED
        assert (whole.usage.prompt_tokens, whole.usage.cached_tokens) == (22, 16)
    pieces = [EVENTS[i : i + 50] for i in range(0, len(EVENTS), 50)]
    async with serving(streaming(*pieces)) as server, provider(server) as ours:
        answer = await ours.chat(call(stream=True, reasoning_effort="low"))
        assert answer.shows_reasoning
        assert shown(collected(await deltas(answer))) == EXPECTED
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (22, 9)


async def test_a_stream_that_is_cut_is_an_error() -> None:
    async with serving(streaming(EVENTS[:-40])) as server, provider(server) as ours:
        answer = await ours.chat(call(stream=True))
        with pytest.raises(ApiError, match="invalid answer"):
            await deltas(answer)


async def test_closing_before_the_end_drops_the_connection() -> None:
    async with serving(streaming(EVENTS[:-40], end=b"")) as server, provider(server) as ours:
        answer = await ours.chat(call(stream=True))
        await anext(answer.deltas)
        await answer.deltas.aclose()  # type: ignore[attr-defined]
        assert await server.closed.get() == 1


def error_body(code: int, status: str, *details: dict[str, str]) -> bytes:
    error = {"code": code, "message": f"Because {KEY}.", "status": status, "details": list(details)}
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("code", "status"),
    [(400, "INVALID_ARGUMENT"), (404, "NOT_FOUND"), (429, "RESOURCE_EXHAUSTED"), (503, "UNAVAILABLE")],
)
@pytest.mark.parametrize("as_list", [False, True])
async def test_errors_keep_status_code_and_message(code: int, status: str, as_list: bool) -> None:
    body = error_body(code, status, {"@type": "RetryInfo", "retryDelay": "6.5s"})
    reply = response(b"[%b]" % body if as_list else body, code, **{"x-request-id": "theirs"})
    async with serving(always(reply)) as server, provider(server) as ours:
        with pytest.raises(ApiError) as caught:
            await ours.chat(call(stream=as_list))
    assert (caught.value.status, caught.value.code, caught.value.message) == (code, status, "Because ***.")
    delay = {"retry-after": "7"} if code in (429, 503) else {}
    assert caught.value.headers == {"x-upstream-request-id": "theirs", **delay}


@pytest.mark.parametrize(("code", "details"), [(403, []), (401, []), (400, [{"reason": "API_KEY_INVALID"}])])
async def test_a_refused_key_is_the_gateways_fault(code: int, details: list[dict[str, str]]) -> None:
    reply = response(error_body(code, "INVALID_ARGUMENT", *details), code)
    async with serving(always(reply)) as server, provider(server) as ours:
        with pytest.raises(ApiError, match="refused the gateway's API key") as caught:
            await ours.chat(call())
    assert caught.value.status == 502


async def test_other_endpoints_are_refused() -> None:
    async with serving(always(REPLY)) as server, provider(server) as ours:
        body = {"model": "here", "prompt": "x"}
        with pytest.raises(InvalidRequest, match="/v1/completions"):
            await ours.complete(ModelCall(typed(body, CompletionRequest), body, "r"))

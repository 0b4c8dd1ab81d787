"""Calls of an AnthropicProvider to a scripted server, and the pieces of its answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.answer import Delta, Generated
from gateway.exchange.shape import CollectedChoice
from gateway.providers.base import ModelCall
from gateway.providers.upstream.anthropic.provider import AnthropicProvider
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from policies.upstream import UpstreamModel
from tests.gateway.providers.upstream.provider_calls import KEY
from tests.gateway.providers.upstream.scripted_server import ScriptedServer

USAGE = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 2,
    "cache_read_input_tokens": 16,
    "output_tokens": 9,
    "output_tokens_details": {"thinking_tokens": 3},
}
CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "hm é", "signature": "signed"},
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": [1, 2]}},
    {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "there",
    "content": CONTENT,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": USAGE,
}


def event(kind: str, **members: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def block(index: int, start: dict[str, Any], *pieces: dict[str, Any]) -> bytes:
    deltas = b"".join(event("content_block_delta", index=index, delta=piece) for piece in pieces)
    begin = event("content_block_start", index=index, content_block=start)
    return begin + deltas + event("content_block_stop", index=index)


def args(text: str) -> dict[str, str]:
    return {"type": "input_json_delta", "partial_json": text}


EVENTS = (
    event("message_start", message={**MESSAGE, "content": [], "usage": {**USAGE, "output_tokens": 1}})
    + event("ping")
    + block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "hm "},
        {"type": "thinking_delta", "thinking": "é"},
        {"type": "signature_delta", "signature": "signed"},
    )
    + block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Let me see."})
    + block(2, {**CONTENT[2], "input": {}}, args(""), args('{"a": '), args("[1, 2]}"))
    + block(3, {**CONTENT[3], "input": {}}, args("{}"))
    + event("some_new_event", anything={"index": 1})
    + event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 9})
    + event("message_stop")
)
"""MESSAGE as a stream."""


def call(**fields: object) -> ModelCall[Any]:
    body = {"model": "here", "messages": [{"role": "user", "content": "é"}], **fields}
    return ModelCall(typed(body, ChatRequest), body, "req_1", trace_headers={"traceparent": "00-a-b-01"})


@asynccontextmanager
async def provider(server: ScriptedServer, **limits: Any) -> AsyncIterator[AnthropicProvider]:  # noqa: ANN401
    upstream = UpstreamModel(base_url=server.base_url, model="there", api="anthropic", **limits)
    found = AnthropicProvider("here", upstream, KEY)
    yield found
    await found.close()


async def deltas(answer: Generated) -> list[Delta]:
    return [delta async for delta in answer.deltas]


def collected(found: list[Delta]) -> CollectedChoice:
    choice = CollectedChoice()
    for delta in found:
        choice.add(delta)
    return choice


def shown(choice: CollectedChoice) -> tuple[str, list[tuple[str, str]], list[Any], str | None]:
    calls = [(call.call_id, call.name, json.loads(call.arguments)) for call in choice.tool_calls]
    return "".join(choice.text_pieces), choice.signed_reasoning, calls, choice.finish_reason


EXPECTED = (
    "Let me see.",
    [("hm é", "signed")],
    [("toolu_1", "add", {"a": [1, 2]}), ("toolu_2", "now", {})],
    "tool_calls",
)

"""A scripted provider that speaks OpenAI's chat and Anthropic's Messages, in the test's own process.

What it answers follows from the request: its tools, format, reasoning, images, and the last text.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from tests.e2e.http_thread import HttpThread

Part = tuple[str, str]  # kind, text: of "reasoning", "text" or "call" (arguments)


class ApiUpstream(HttpThread):
    """Listens on an ephemeral port until closed; `num_dropped` counts clients that left a stream."""

    def __init__(self) -> None:
        self.num_dropped = 0
        super().__init__()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/messages", self._messages)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "fail" in json.dumps(body["messages"][-1]):
            error = {"message": "scripted", "type": "rate_limit_error", "param": None, "code": None}
            return web.json_response({"error": error}, status=429)
        parts = answer(body)
        if not body.get("stream"):
            return web.json_response(_chat_whole(parts))
        return await self._stream(request, body, _chat_events(parts))

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "fail" in json.dumps(body["messages"][-1]):
            error = {"type": "rate_limit_error", "message": "scripted"}
            return web.json_response({"type": "error", "error": error}, status=429)
        parts = answer(body)
        if not body.get("stream"):
            return web.json_response(_message_whole(parts))
        return await self._stream(request, body, _message_events(parts))

    async def _stream(
        self, request: web.Request, body: dict[str, Any], events: list[bytes]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        never = asyncio.Event()
        for event in events:
            await response.write(event)
            if "wait" in json.dumps(body["messages"][-1]) and b"4" in event:
                try:
                    await never.wait()
                finally:
                    self.num_dropped += 1
        return response


def answer(body: dict[str, Any]) -> list[Part]:
    """What the model says."""
    last = json.dumps(body["messages"][-1])
    reasons = body.get("reasoning_effort") or body.get("thinking", {}).get("type") == "adaptive"
    parts: list[Part] = [("reasoning", "17 + 25 = 42")] if reasons else []
    if body.get("tools") and "tool_result" not in last and '"tool"' not in last:
        return [*parts, ("call", '{"expression": "417 + 256"}')]
    if body.get("response_format") or "format" in body.get("output_config", {}):
        return [*parts, ("text", '{"sum": 42}')]
    if "image" in last:
        return [*parts, ("text", "an image")]
    return [*parts, ("text", "673" if "673" in last else "42")]


USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
FINISH = {"call": "tool_calls", "text": "stop"}


def _chat_message(parts: list[Part]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for kind, text in parts:
        if kind == "call":
            function = {"name": "calculator", "arguments": text}
            message["tool_calls"] = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
        else:
            message["reasoning_content" if kind == "reasoning" else "content"] = text
    return message


def _chat_whole(parts: list[Part]) -> dict[str, Any]:
    choice = {"index": 0, "message": _chat_message(parts), "finish_reason": FINISH[parts[-1][0]]}
    return _chat_shape("chat.completion", [choice]) | {"usage": USAGE}


def _chat_events(parts: list[Part]) -> list[bytes]:
    events = []
    for part in parts:
        for number, piece in enumerate(_pieces(part)):
            delta = _chat_message([piece])
            if number and piece[0] == "call":  # only the first piece has id and name
                delta["tool_calls"] = [{"index": 0, "function": {"arguments": piece[1]}}]
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            events.append(_chat_shape("chat.completion.chunk", [choice]))
    end = {"index": 0, "delta": {}, "finish_reason": FINISH[parts[-1][0]]}
    events.append(_chat_shape("chat.completion.chunk", [end]))
    events.append(_chat_shape("chat.completion.chunk", []) | {"usage": USAGE})
    return [*(b"data: %s\n\n" % json.dumps(event).encode() for event in events), b"data: [DONE]\n\n"]


def _chat_shape(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1700000000, "model": "m", "choices": choices}


def _pieces(part: Part) -> list[Part]:
    kind, text = part
    return [(kind, text[:1]), (kind, text[1:])]


STOPS = {"call": "tool_use", "text": "end_turn"}
BLOCKS: dict[str, dict[str, Any]] = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
    "call": {"type": "tool_use", "id": "toolu_1", "name": "calculator", "input": {}},
}
FIELDS = {"reasoning": "thinking", "text": "text"}
DELTAS = {"reasoning": "thinking_delta", "text": "text_delta", "call": "input_json_delta"}


def _message_whole(parts: list[Part]) -> dict[str, Any]:
    content = []
    for kind, text in parts:
        block = dict(BLOCKS[kind])
        block["input" if kind == "call" else FIELDS[kind]] = json.loads(text) if kind == "call" else text
        if kind == "reasoning":
            block["signature"] = "signed"
        content.append(block)
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": STOPS[parts[-1][0]],
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 3},
    }


def _message_events(parts: list[Part]) -> list[bytes]:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**_message_whole(parts), "content": []}}
    ]
    for index, part in enumerate(parts):
        kind = part[0]
        events.append({"type": "content_block_start", "index": index, "content_block": BLOCKS[kind]})
        for _, text in _pieces(part):
            delta = {"type": DELTAS[kind], FIELDS.get(kind, "partial_json"): text}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        if kind == "reasoning":
            delta = {"type": "signature_delta", "signature": "signed"}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": STOPS[parts[-1][0]], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 3}})
    events.append({"type": "message_stop"})
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]

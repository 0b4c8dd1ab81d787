"""Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.apis.scripted import SIGNATURE, Part, Wants, pieces


class AnthropicApi:
    """Implements `scripted.Dialect`."""

    paths = ("/v1/messages", "/v1/messages/count_tokens")
    media_type = "text/event-stream"
    first_text = 2

    def wants(self, body: dict[str, Any]) -> Wants:
        last = json.dumps(body["messages"][-1])
        return Wants(
            last,
            body.get("thinking", {}).get("type") == "adaptive",
            "tools" in body,
            "format" in body.get("output_config", {}),
            '"image"' in last,
            "tool_result" in last,
        )

    def whole(self, parts: list[Part]) -> dict[str, Any]:
        return _whole(parts)

    def events(self, parts: list[Part]) -> list[bytes]:
        return _events(parts)

    def error(self) -> tuple[dict[str, Any], dict[str, str]]:
        return {"type": "error", "error": {"type": "rate_limit_error", "message": "scripted"}}, {}


STOPS = {"call": "tool_use", "text": "end_turn"}
BLOCKS: dict[str, dict[str, Any]] = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
    "call": {"type": "tool_use", "id": "toolu_1", "name": "calculator", "input": {}},
}
FIELDS = {"reasoning": "thinking", "text": "text"}
DELTAS = {"reasoning": "thinking_delta", "text": "text_delta", "call": "input_json_delta"}


def _whole(parts: list[Part]) -> dict[str, Any]:
    content = []
    for kind, text in parts:
        block = dict(BLOCKS[kind])
        block["input" if kind == "call" else FIELDS[kind]] = json.loads(text) if kind == "call" else text
        if kind == "reasoning":
            block["signature"] = SIGNATURE
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


def _events(parts: list[Part]) -> list[bytes]:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**_whole(parts), "content": []}}]
    for index, part in enumerate(parts):
        kind = part[0]
        events.append({"type": "content_block_start", "index": index, "content_block": BLOCKS[kind]})
        for _, text in pieces(part):
            delta = {"type": DELTAS[kind], FIELDS.get(kind, "partial_json"): text}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        if kind == "reasoning":
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": STOPS[parts[-1][0]], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 3}})
    events.append({"type": "message_stop"})
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]

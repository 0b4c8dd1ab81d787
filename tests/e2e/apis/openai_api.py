"""OpenAI's chat API, also as Azure has it."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.apis.scripted import Part, Wants, pieces


class OpenAIApi:
    """Implements `scripted.Dialect`."""

    paths = ("/v1/chat/completions",)
    media_type = "text/event-stream"
    first_text = 0

    def wants(self, body: dict[str, Any]) -> Wants:
        message = body["messages"][-1]
        last = json.dumps(message)
        return Wants(
            last,
            "reasoning_effort" in body,
            "tools" in body,
            "response_format" in body,
            "image_url" in last,
            message["role"] == "tool",
        )

    def whole(self, parts: list[Part]) -> dict[str, Any]:
        choice = {"index": 0, "message": _message(parts), "finish_reason": FINISH[parts[-1][0]]}
        return _shape("chat.completion", [choice]) | {"usage": USAGE}

    def events(self, parts: list[Part]) -> list[bytes]:
        found = _chunks(parts)
        return [*(b"data: %s\n\n" % json.dumps(event).encode() for event in found), b"data: [DONE]\n\n"]

    def error(self) -> tuple[dict[str, Any], dict[str, str]]:
        error = {"message": "scripted", "type": "rate_limit_error", "param": None, "code": None}
        return {"error": error}, {}


class AzureApi(OpenAIApi):
    """With the results of its content filter: before the answer, in it and after its finish reason."""

    paths = ("/v1/openai/v1/chat/completions",)
    first_text = 1

    def whole(self, parts: list[Part]) -> dict[str, Any]:
        found = super().whole(parts) | {"prompt_filter_results": [PROMPT_FILTER]}
        found["choices"][0]["content_filter_results"] = FILTER
        return found

    def events(self, parts: list[Part]) -> list[bytes]:
        filtered = {"index": 0, "finish_reason": None, "content_filter_results": FILTER}
        first = {**_shape("", []), "prompt_filter_results": [PROMPT_FILTER]}
        late = _shape("", [{**filtered, "content_filter_offsets": {"check_offset": 1}}])
        extra = [b"data: %s\n\n" % json.dumps(event).encode() for event in (first, late)]
        *chunks, usage, done = super().events(parts)
        return [extra[0], *chunks, extra[1], usage, done]


FILTER = {"hate": {"filtered": False, "severity": "safe"}}
PROMPT_FILTER = {"prompt_index": 0, "content_filter_results": FILTER}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
FINISH = {"call": "tool_calls", "text": "stop"}


def _message(parts: list[Part]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for kind, text in parts:
        if kind == "call":
            function = {"name": "calculator", "arguments": text}
            message["tool_calls"] = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
        else:
            message["reasoning_content" if kind == "reasoning" else "content"] = text
    return message


def _chunks(parts: list[Part]) -> list[dict[str, Any]]:
    events = []
    for part in parts:
        for number, piece in enumerate(pieces(part)):
            delta = _message([piece])
            if number and piece[0] == "call":  # only the first piece has id and name
                delta["tool_calls"] = [{"index": 0, "function": {"arguments": piece[1]}}]
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            events.append(_shape("chat.completion.chunk", [choice]))
    end = {"index": 0, "delta": {}, "finish_reason": FINISH[parts[-1][0]]}
    events.append(_shape("chat.completion.chunk", [end]))
    events.append(_shape("chat.completion.chunk", []) | {"usage": USAGE})
    return events


def _shape(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1700000000, "model": "m", "choices": choices}

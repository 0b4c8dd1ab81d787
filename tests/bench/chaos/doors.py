"""Four APIs that answer a question: what to send, where the text of their streams is, how a stream ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

HONEST_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses of a request that met a process which was gone: an error of the moment, never an internal one."""
_INTERNAL = "The gateway failed to answer this request"


@dataclass(frozen=True)
class Door:
    """One API."""

    name: str
    path: str

    def body(self, model: str, question: str, max_tokens: int, *, stream: bool) -> dict[str, Any]:
        """A request whose answer is the same each time."""
        if self.name == "responses":
            asked: dict[str, Any] = {"input": question, "max_output_tokens": max_tokens, "store": False}
        elif self.name == "completions":
            asked = {"prompt": question, "max_tokens": max_tokens}
        else:
            asked = {"messages": [{"role": "user", "content": question}], "max_tokens": max_tokens}
        return {"model": model, "stream": stream, "temperature": 0, **asked}

    def whole(self, answer: dict[str, Any]) -> str:
        """The text of an answer that was not streamed."""
        if self.name == "chat":
            return str(answer["choices"][0]["message"]["content"])
        if self.name == "completions":
            return str(answer["choices"][0]["text"])
        if self.name == "messages":
            return "".join(part["text"] for part in answer["content"])
        parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        return "".join(part["text"] for part in parts)

    def delta(self, event: dict[str, Any]) -> str:
        """The text of one event of a stream."""
        if self.name in ("chat", "completions"):
            choices = event.get("choices") or [{}]
            found = choices[0].get("text") or (choices[0].get("delta") or {}).get("content")
        elif self.name == "messages":
            found = (event.get("delta") or {}).get("text")
        else:
            found = event["delta"] if event["type"] == "response.output_text.delta" else None
        return found or ""

    def is_end(self, data: str) -> bool:
        """Whether this is the last event of a stream that is complete."""
        if self.name in ("chat", "completions"):
            return data == "[DONE]"
        ends = ("message_stop", "response.completed", "response.incomplete")
        return json.loads(data).get("type") in ends

    def error(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The error of an event that says that the stream failed."""
        if event.get("type") == "response.failed":
            event = event["response"]
        elif self.name == "responses" and event.get("type") == "error":
            return event  # its members are not in an object of their own
        found = event.get("error")
        return found if isinstance(found, dict) else None


CHAT = Door("chat", "/v1/chat/completions")
COMPLETIONS = Door("completions", "/v1/completions")
RESPONSES = Door("responses", "/v1/responses")
MESSAGES = Door("messages", "/v1/messages")
DOORS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def error_fault(body: object, path: str = "") -> str:
    """Why a body is not an error that names itself, in the shape of its API; "" when it is one."""
    if not isinstance(body, dict) or not isinstance(body.get("error"), dict):
        return "it is not an error object"
    if path.startswith("/v1/messages") and body.get("type") != "error":
        return "it is not in Anthropic's envelope"
    return event_fault(body["error"])


def event_fault(error: dict[str, Any]) -> str:
    """Likewise for the error itself."""
    message = error.get("message")
    if not message or not (error.get("type") or error.get("code")):
        return "it has no message or no type"
    return "it is an internal error" if str(message).startswith(_INTERNAL) else ""

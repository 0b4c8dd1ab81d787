"""The JSON of /v1/messages, whole or as server-sent events in the documented order.

message_start, then per content block content_block_start, content_block_delta…, content_block_stop, then
message_delta with the stop reason and all token counts, message_stop.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from gateway.answer import Delta, ToolCallDelta, Usage
from gateway.exchange.shape import CollectedChoice, encode, own_counts
from gateway.requests.reasoning_details import OURS, REDACTED
from gateway.requests.tool_call_messages import INVALID_ARGUMENTS

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class MessageShape:
    """Encodes one message. Implements `gateway.exchange.shape.Shape`."""

    def __init__(self, model: str, usage: Usage, *, shows_thinking: bool, max_tokens: int = 0) -> None:
        """`usage` is the answer's, filled while it is generated; `max_tokens` the request's."""
        self.response_id = "msg_" + secrets.token_hex(12)
        self._model = model
        self._usage = usage
        self._max_tokens = max_tokens
        self._shows_thinking = shows_thinking
        self._num_blocks = 0
        self._open_kind = ""  # of the last block; "" when none is open
        self._open_call = -1  # the call of an open tool_use block
        self._signature = sha256()
        self._stop_reason = "end_turn"
        self._stop_sequence: str | None = None

    def opening(self) -> bytes:
        """message_start. The token counts are those known so far."""
        message = self._message([], None, None, {**usage_object(self._usage), "output_tokens": 0})
        return _event("message_start", {"message": message})

    def chunk(self, delta: Delta) -> bytes:
        """The events of one delta."""
        events = b""
        if delta.reasoning and self._shows_thinking:
            events += self._open("thinking", {"thinking": "", "signature": ""})
            events += self._delta("thinking_delta", "thinking", delta.reasoning)
            self._signature.update(delta.reasoning.encode("utf-8", "replace"))
        if delta.reasoning_signature and self._shows_thinking:
            events += self._sign(delta.reasoning_signature)
        if delta.text:
            events += self._open("text", {"text": ""})
            events += self._delta("text_delta", "text", delta.text)
        for call in delta.tool_calls:
            events += self._call(call)
        if delta.finish_reason is not None:
            self._finish(delta.finish_reason, delta.stop_string)
        return events

    def closing(self, usage: Usage) -> bytes:
        """The end of the last block, message_delta and message_stop."""
        end = {"stop_reason": self._reason(usage), "stop_sequence": self._stop_sequence}
        return (
            self._close()
            + _event("message_delta", {"delta": end, "usage": usage_object(usage)})
            + _event("message_stop", {})
        )

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        content: list[dict[str, Any]] = []
        for choice in choices[:1]:
            text = "".join(choice.text_pieces)
            if self._shows_thinking:
                content += self._thinking(choice)
            if text:
                content.append({"type": "text", "text": text})
            content += [
                {"type": "tool_use", "id": call.call_id, "name": call.name, "input": _input(call.arguments)}
                for call in choice.tool_calls
            ]
            self._finish(choice.finish_reason or "stop", choice.stop_string)
        return encode(self._message(content, self._reason(usage), self._stop_sequence, usage_object(usage)))

    def _thinking(self, choice: CollectedChoice) -> list[dict[str, Any]]:
        found = [_thinking_block(text, signature) for text, signature in choice.signed_reasoning]
        if unsigned := choice.unsigned_reasoning:
            self._signature.update(unsigned.encode("utf-8", "replace"))
            found.append(_thinking_block(unsigned, self._signed()))
        return found

    def _message(
        self, content: list[Any], stop_reason: str | None, stop_sequence: str | None, usage: object
    ) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": usage,
        }

    def _finish(self, reason: str, stop_string: str) -> None:
        self._stop_reason = STOP_REASONS.get(reason, "end_turn")
        if stop_string and self._stop_reason == "end_turn":
            self._stop_reason, self._stop_sequence = "stop_sequence", stop_string

    def _reason(self, usage: Usage) -> str:
        """The stop reason: an answer shorter than its limit was ended by the context."""
        if self._stop_reason == "max_tokens" and 0 < usage.completion_tokens < self._max_tokens:
            return "model_context_window_exceeded"
        return self._stop_reason

    def _sign(self, signature: str) -> bytes:
        """End a block of thinking with this signature; without text it is a block of its own."""
        if signature.startswith(REDACTED):
            data = signature.removeprefix(REDACTED)
            return self._open("redacted_thinking", {"data": data}) + self._close()
        return self._open("thinking", {"thinking": "", "signature": ""}) + self._close(signature)

    def _call(self, call: ToolCallDelta) -> bytes:
        events = b""
        if call.index != self._open_call:
            events = self._close()
            events += self._open("tool_use", {"id": call.call_id, "name": call.name, "input": {}})
            self._open_call = call.index
        return events + self._delta("input_json_delta", "partial_json", call.arguments)

    def _open(self, kind: str, block: dict[str, object]) -> bytes:
        """Begin a block of this kind, unless one is open."""
        if kind == self._open_kind:
            return b""
        closed = self._close()
        self._open_kind = kind
        self._num_blocks += 1
        start = {"index": self._num_blocks - 1, "content_block": {"type": kind, **block}}
        return closed + _event("content_block_start", start)

    def _close(self, signature: str = "") -> bytes:
        """End the open block, if there is one; thinking with this signature, by default one of ours."""
        if not self._open_kind:
            return b""
        events = b""
        if self._open_kind == "thinking":
            events = self._delta("signature_delta", "signature", signature or self._signed())
        self._open_kind = ""
        self._open_call = -1
        return events + _event("content_block_stop", {"index": self._num_blocks - 1})

    def _delta(self, kind: str, field: str, text: str) -> bytes:
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%s","%s":%s}}\n\n'
            % (self._num_blocks - 1, kind.encode(), field.encode(), encode(text))
        )

    def _signed(self) -> str:
        """A thinking block's signature: clients want one to send the block back. It is not verified."""
        return OURS + b64encode(self._signature.digest()).decode()


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts as Anthropic has them: `input_tokens` are those that no cache had."""
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        **own_counts(usage),
    }


def _input(arguments: str) -> object:
    """A call's arguments as an object, numbers kept as written; else their text, as one argument."""
    try:
        msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {INVALID_ARGUMENTS: arguments}
    return msgspec.Raw(arguments.encode() or b"{}")


def _thinking_block(text: str, signature: str) -> dict[str, str]:
    if signature.startswith(REDACTED):
        return {"type": "redacted_thinking", "data": signature.removeprefix(REDACTED)}
    return {"type": "thinking", "thinking": text, "signature": signature}


def _event(kind: str, members: dict[str, object]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode({"type": kind, **members}))

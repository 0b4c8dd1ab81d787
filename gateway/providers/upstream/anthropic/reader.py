"""Reads Anthropic's answers, whole or as events, into deltas, usage and finish reason."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.answer import Delta, FinishReason
from gateway.providers.upstream.answer_reader import MAX_USAGE_TOKENS
from gateway.providers.upstream.chat_reader import JSON_ERRORS, BlockReader
from gateway.providers.upstream.redaction import Redactor
from gateway.requests.reasoning_details import REDACTED

FINISH_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Every other stop reason is a regular end: "end_turn", "stop_sequence", "pause_turn"."""

_Tokens = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)] | None


class _OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: _Tokens = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: _Tokens = None
    cache_creation_input_tokens: _Tokens = None
    cache_read_input_tokens: _Tokens = None
    output_tokens: _Tokens = None
    output_tokens_details: _OutputDetails | None = None


class _Block(msgspec.Struct, gc=False):
    """A content block, or a piece of one; which fields it has depends on its type."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""  # of redacted thinking
    partial_json: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    stop_reason: str | None = None  # of message_delta
    stop_sequence: str | None = None


class _Message(msgspec.Struct, gc=False):
    content: list[_Block] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage | None = None


class _Event(msgspec.Struct, gc=False):
    type: str
    message: _Message | None = None
    index: int = 0
    content_block: _Block | None = None
    delta: _Block | None = None
    usage: _Usage | None = None
    error: object = None


_MESSAGE = msgspec.json.Decoder(_Message)
_EVENT = msgspec.json.Decoder(_Event)


class MessageReader(BlockReader):
    """Follows one answer. `deltas` are those of the events read so far; their consumer removes them."""

    def __init__(self, model: str, redactor: Redactor) -> None:
        super().__init__(model, redactor)
        self._counts: dict[str, int] = {}

    def read_whole(self, body: bytes) -> None:
        """Read a whole answer. Raises ApiError."""
        try:
            message = _MESSAGE.decode(body)
        except JSON_ERRORS as error:
            raise self.not_json() from error
        if message.stop_reason is None:
            raise self.invalid("it has no stop_reason")
        for index, block in enumerate(message.content):
            self._block(index, block)
            if block.type == "tool_use":
                self._piece(index, _Block(type="input_json_delta", partial_json=_json(block.input)))
        self._read_usage(message.usage)
        self._stop(message.stop_reason, message.stop_sequence)
        self._has_end = True
        self.check_complete()

    def read(self, event: bytes) -> None:
        """Read one event of a stream. Raises ApiError, also for an event that reports one."""
        try:
            found = _EVENT.decode(event)
        except JSON_ERRORS as error:
            raise self.not_json() from error
        if found.type == "error":
            raise self.reported(event)
        if found.message is not None:
            self._read_usage(found.message.usage)
        if found.content_block is not None:
            self._block(found.index, found.content_block)
        elif found.type == "content_block_delta" and found.delta is not None:
            self._piece(found.index, found.delta)
        elif found.type == "message_delta":
            self._read_usage(found.usage)
            if found.delta is not None and found.delta.stop_reason is not None:
                self._stop(found.delta.stop_reason, found.delta.stop_sequence)
        elif found.type == "message_stop":
            self._has_end = True

    def _block(self, index: int, block: _Block) -> None:
        """A block begins, perhaps with content."""
        if block.type == "tool_use":
            self._begin_call(index, block.id, block.name)
        else:
            self._piece(index, block)

    def _piece(self, index: int, piece: _Block) -> None:
        if piece.text:
            self.deltas.append(Delta(0, piece.text))
        if piece.thinking or piece.signature:
            self.deltas.append(Delta(0, reasoning=piece.thinking, reasoning_signature=piece.signature))
        if piece.type == "redacted_thinking":
            self.deltas.append(Delta(0, reasoning_signature=REDACTED + piece.data))
        if piece.partial_json:
            self._add_arguments(index, piece.partial_json)

    def _stop(self, reason: str, sequence: str | None) -> None:
        finish = FINISH_REASONS.get(reason, "stop")
        self._finish = Delta(0, finish_reason=finish, stop_string=sequence or "")

    def _read_usage(self, found: _Usage | None) -> None:
        """Counts are cumulative; those that are missing keep their value."""
        if found is None:
            return
        for name in _Usage.__struct_fields__[:4]:
            value = getattr(found, name)
            if value is not None:
                self._counts[name] = value
        counts, usage = self._counts, self.usage
        cached = counts.get("cache_read_input_tokens", 0)
        written = counts.get("cache_creation_input_tokens", 0)
        usage.prompt_tokens = counts.get("input_tokens", 0) + cached + written
        usage.cached_tokens, usage.cache_write_tokens = cached, written
        usage.completion_tokens = counts.get("output_tokens", 0)
        self._has_told = bool(found.output_tokens)
        details = found.output_tokens_details
        if details is not None and details.thinking_tokens is not None:
            usage.reasoning_tokens = details.thinking_tokens


def _json(value: object) -> str:
    return msgspec.json.encode(value if value is not None else {}).decode()

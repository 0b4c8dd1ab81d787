"""Reads the answers of Converse and ConverseStream into deltas, usage and finish reason."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.answer import Delta, FinishReason
from gateway.errors import ApiError
from gateway.providers.upstream.answer_reader import MAX_USAGE_TOKENS
from gateway.providers.upstream.chat_reader import JSON_ERRORS, BlockReader
from gateway.providers.upstream.errors import MAX_NAME_CHARACTERS, of_error_body
from gateway.requests.reasoning_details import REDACTED_BEDROCK

FINISH_REASONS: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
"""Every other stop reason that is no failure is a regular end: "end_turn", "stop_sequence"."""
FAILURES = ("malformed_model_output", "malformed_tool_use")
"""Reasons of an answer that cannot be used."""
EXCEPTIONS = {
    "throttlingException": 429,
    "serviceUnavailableException": 503,
    "validationException": 400,
    "modelTimeoutException": 504,
}
"""HTTP status of an exception in a stream; of every other one 502."""

_Tokens = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)] | None


class _Usage(msgspec.Struct, gc=False, rename="camel"):
    input_tokens: _Tokens = None
    output_tokens: _Tokens = None
    cache_read_input_tokens: _Tokens = None
    cache_write_input_tokens: _Tokens = None


class _ReasoningText(msgspec.Struct, gc=False):
    text: str = ""
    signature: str = ""


class _Reasoning(_ReasoningText, gc=False, rename="camel"):
    reasoning_text: _ReasoningText | None = None  # in whole answers
    redacted_content: str = ""


class _ToolUse(msgspec.Struct, gc=False, rename="camel"):
    tool_use_id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b'""')  # a text in deltas, an object in whole answers, as written


class _Block(msgspec.Struct, gc=False, rename="camel"):
    """A content block or a piece of one."""

    text: str = ""
    reasoning_content: _Reasoning | None = None
    tool_use: _ToolUse | None = None
    image: object = None


class _Piece(msgspec.Struct, gc=False, rename="camel"):
    """The payload of any event; which fields it has depends on its type."""

    content_block_index: int = 0
    start: _Block | None = None
    delta: _Block | None = None
    stop_reason: str = ""
    usage: _Usage | None = None


class _Message(msgspec.Struct, gc=False):
    content: list[_Block] = []


class _Output(msgspec.Struct, gc=False):
    message: _Message


class _Answer(msgspec.Struct, gc=False, rename="camel"):
    output: _Output
    stop_reason: str
    usage: _Usage


_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_piece = msgspec.json.Decoder(_Piece).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_text = msgspec.json.Decoder(str).decode


class ConverseReader(BlockReader):
    """Follows one answer. `deltas` are those of what was read so far; their consumer removes them."""

    def read_whole(self, body: bytes) -> None:
        """Read an answer that is not streamed. Raises ApiError."""
        try:
            answer = _decode_answer(body)
        except JSON_ERRORS as error:
            raise self.not_json() from error
        for index, block in enumerate(answer.output.message.content):
            if block.tool_use is not None:
                self._begin_call(index, block.tool_use.tool_use_id, block.tool_use.name)
                self._add_arguments(index, bytes(block.tool_use.input).decode())
            else:
                self._block(index, block)
        self._stop(answer.stop_reason)
        self._read_usage(answer.usage)
        self.check_complete()

    def read(self, event: bytes) -> None:
        """Read one event of a stream, {type: payload}. Raises ApiError, also for one that reports one."""
        try:
            ((kind, payload),) = _decode(event).items()
            if kind.endswith("xception") or kind == "error":
                raise self._exception(kind, bytes(payload))
            self._piece(_decode_piece(payload))
        except (*JSON_ERRORS, ValueError) as error:
            raise self.not_json() from error

    def _piece(self, piece: _Piece) -> None:
        if piece.start is not None and piece.start.tool_use is not None:
            use = piece.start.tool_use
            self._begin_call(piece.content_block_index, use.tool_use_id, use.name)
        if piece.delta is not None:
            self._block(piece.content_block_index, piece.delta)
        if piece.stop_reason:
            self._stop(piece.stop_reason)
        if piece.usage is not None:
            self._read_usage(piece.usage)

    def _exception(self, kind: str, payload: bytes) -> ApiError:
        error = of_error_body(payload, self._redactor, EXCEPTIONS.get(kind, 502))
        if error is None:
            return self.invalid("it holds an error of an unknown shape")
        error.code = self._redactor.clean(kind, MAX_NAME_CHARACTERS)
        return error

    def _block(self, index: int, block: _Block) -> None:
        if block.text:
            self.deltas.append(Delta(0, block.text))
        if (found := block.reasoning_content) is not None:
            text = found.reasoning_text or found
            if text.text or text.signature:
                self.deltas.append(Delta(0, reasoning=text.text, reasoning_signature=text.signature))
            if found.redacted_content:
                self.deltas.append(Delta(0, reasoning_signature=REDACTED_BEDROCK + found.redacted_content))
        if block.tool_use is not None:
            self._add_arguments(index, _decode_text(block.tool_use.input))
        if block.image is not None:
            raise self.invalid("it holds an image, which a chat cannot carry")

    def _stop(self, reason: str) -> None:
        if reason in FAILURES:
            raise self.invalid(f"the model failed with the stop reason {reason}")
        self._finish = Delta(0, finish_reason=FINISH_REASONS.get(reason, "stop"))

    def _read_usage(self, found: _Usage) -> None:
        """Input tokens are those that no cache had."""
        usage = self.usage
        cached, written = found.cache_read_input_tokens or 0, found.cache_write_input_tokens or 0
        usage.prompt_tokens = (found.input_tokens or 0) + cached + written
        usage.cached_tokens, usage.cache_write_tokens = cached, written
        usage.completion_tokens = found.output_tokens or 0
        self._has_end = True

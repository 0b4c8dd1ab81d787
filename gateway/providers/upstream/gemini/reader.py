"""Reads Gemini's answers, whole or as events, into deltas, usage and finish reasons."""

from __future__ import annotations

import secrets
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.answer import Delta, FinishReason, ToolCallDelta
from gateway.errors import InvalidRequest, UpstreamFailed
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.answer_reader import MAX_TOOL_CALLS, MAX_USAGE_TOKENS
from gateway.providers.upstream.chat_reader import JSON_ERRORS, ChatReader
from gateway.providers.upstream.errors import MAX_NAME_CHARACTERS
from gateway.providers.upstream.gemini.contents import SIGNATURE
from gateway.providers.upstream.redaction import Redactor

FINISH_REASONS: dict[str, FinishReason] = {
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    **dict.fromkeys(
        (
            "SAFETY", "RECITATION", "LANGUAGE", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII",
            "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "IMAGE_OTHER", "MODEL_ARMOR",
            "ESCALATION", "PUP_LIMITED_DISABLED",
        ),
        "content_filter",
    ),
}  # fmt: skip
"""Every other reason that is no failure is a regular end: "STOP"."""
FAILURES = (
    "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE",
    "MALFORMED_RESPONSE",
)  # fmt: skip
"""Reasons of an answer that cannot be used."""

_Tokens = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)]


class _Usage(msgspec.Struct, gc=False, rename="camel"):
    prompt_token_count: _Tokens = 0
    tool_use_prompt_token_count: _Tokens = 0
    cached_content_token_count: _Tokens = 0
    candidates_token_count: _Tokens = 0
    thoughts_token_count: _Tokens = 0


class _FunctionCall(msgspec.Struct, gc=False):
    name: str
    id: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")  # as written: no number is changed


class _Part(msgspec.Struct, gc=False, rename="camel"):
    text: str = ""
    thought: bool = False
    thought_signature: str = ""
    function_call: _FunctionCall | None = None
    inline_data: object = None


class _Content(msgspec.Struct, gc=False):
    parts: list[_Part] = []


class _Candidate(msgspec.Struct, gc=False, rename="camel"):
    content: _Content | None = None
    finish_reason: str = ""
    index: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


class _Feedback(msgspec.Struct, gc=False, rename="camel"):
    block_reason: str = ""


class _Response(msgspec.Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] = []
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Usage | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Response).decode


class CandidateReader(ChatReader):
    """Follows one answer. `deltas` are those of what was read so far; their consumer removes them."""

    def __init__(self, model: str, redactor: Redactor, num_choices: int) -> None:
        super().__init__(model, redactor)
        self._num_calls = [0] * num_choices
        self._ends: dict[int, Delta] = {}
        self._seen: set[int] = set()  # candidates that have begun

    def read_whole(self, body: bytes) -> None:
        """Read an answer that is not streamed. Raises ApiError."""
        self.read(body)
        self.check_complete()

    def read(self, event: bytes) -> None:
        """Read one event of a stream. Raises ApiError, also for an event that reports one."""
        try:
            found = _decode(event)
        except JSON_ERRORS as error:
            raise self.not_json() from error
        if found.error is not None:
            raise self.reported(event)
        if found.prompt_feedback is not None and found.prompt_feedback.block_reason:
            raise self._blocked(found.prompt_feedback.block_reason)
        for candidate in found.candidates:
            self._candidate(candidate)
        if found.usage_metadata is not None:
            self._read_usage(found.usage_metadata)

    def check_complete(self) -> None:
        """At the end: each choice has its finish reason. Raises ApiError."""
        if len(self._ends) < len(self._num_calls):
            if self._ends and self._ends.keys() == self._seen:  # what it began, it has ended
                self.settle(is_complete=True)
                raise self._wrong_count(f"{len(self._seen)} of {len(self._num_calls)} candidates")
            raise self.invalid("it ended before it was complete")
        self.deltas += self._ends.values()

    def _blocked(self, reason: str) -> InvalidRequest:
        shown = self._redactor.clean(reason, MAX_NAME_CHARACTERS)
        return InvalidRequest(
            f"The content filter of the model's upstream blocked the request: {shown}.",
            param="messages",
            code="content_filter",
        )

    def _wrong_count(self, what: str) -> UpstreamFailed:
        return upstream_errors.wrong_count(self._model, f"it has {what}")

    def _candidate(self, candidate: _Candidate) -> None:
        index = candidate.index
        if index >= len(self._num_calls):
            raise self._wrong_count(f"a candidate of index {index}, of {len(self._num_calls)}")
        self._seen.add(index)
        for part in candidate.content.parts if candidate.content is not None else ():
            self._part(index, part)
        reason = candidate.finish_reason
        if reason in FAILURES:
            raise self.invalid(f"the model failed with the finish reason {reason}")
        if reason and index not in self._ends:
            finish = FINISH_REASONS.get(reason, "stop")
            if finish == "stop" and self._num_calls[index]:
                finish = "tool_calls"
            self._ends[index] = Delta(index, finish_reason=finish)

    def _part(self, index: int, part: _Part) -> None:
        call = part.function_call
        if call is not None:
            self._call(index, call, part.thought_signature)
        elif part.text:
            delta = Delta(index, reasoning=part.text) if part.thought else Delta(index, part.text)
            self.deltas.append(delta)
        elif part.inline_data is not None:
            raise self.invalid("it holds an image or a sound, which a chat cannot carry")

    def _call(self, index: int, call: _FunctionCall, signature: str) -> None:
        """A call comes whole. Its signature is needed with its result; those of texts are optional."""
        number = self._num_calls[index]
        if number >= MAX_TOOL_CALLS:
            raise upstream_errors.too_long(self._model, f"it has more than {MAX_TOOL_CALLS} tool calls")
        self._num_calls[index] += 1
        arguments = bytes(call.args).decode()
        piece = ToolCallDelta(number, arguments, call.id or f"call_{secrets.token_hex(12)}", call.name)
        delta = Delta(index, tool_calls=[piece])
        if signature:
            delta.reasoning_signature = SIGNATURE + signature
        self.deltas.append(delta)

    def _read_usage(self, found: _Usage) -> None:
        """Counts are cumulative; what is known stays where a later event does not tell it."""
        usage = self.usage
        prompt_tokens = found.prompt_token_count + found.tool_use_prompt_token_count
        completion_tokens = found.candidates_token_count + found.thoughts_token_count
        usage.prompt_tokens = prompt_tokens or usage.prompt_tokens
        usage.cached_tokens = found.cached_content_token_count or usage.cached_tokens
        usage.completion_tokens = completion_tokens or usage.completion_tokens
        if completion_tokens and len(self._ends) == len(self._num_calls):
            self._has_told = True  # before the end, the same number again may lag behind the text
        usage.reasoning_tokens = found.thoughts_token_count or usage.reasoning_tokens

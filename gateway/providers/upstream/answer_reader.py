"""Reads usage, finish reasons and errors from an upstream's answer, decoding each piece once.

The typed decode also validates the JSON, so a truncated or garbled piece never passes as an answer.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.answer import Relayed, Usage
from gateway.errors import ApiError
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.tally import Tally, length_in
from gateway.requests.types import GenerationRequest, ModelRequest

logger = logging.getLogger(__name__)

MAX_USAGE_TOKENS = 100_000_000
"""More than any model takes or gives: such a count is an error, and would spoil the sums in the metrics."""
MAX_TOOL_CALLS = 1024
"""Clients make a list as long as the highest index."""


_Tokens = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)] | None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Tokens = 0
    cache_write_tokens: _Tokens = 0
    cache_creation_tokens: _Tokens = 0  # LiteLLM's name for it
    reasoning_tokens: _Tokens = 0


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0
    total_tokens: object = None  # all that Jina tells
    prompt_cache_hit_tokens: _Tokens = 0  # DeepSeek's, beside no details
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


_NONE = msgspec.Raw(b"null")


class _ToolCall(msgspec.Struct, gc=False):
    index: Annotated[int, Meta(ge=0, lt=MAX_TOOL_CALLS)] | None = None
    function: Any = None
    custom: Any = None


class _Delta(msgspec.Struct, gc=False):
    """What is generated may have any shape: only its length is wanted."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    function_call: Any = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_details: Any = None
    audio: Any = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    index: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    delta: _Delta | None = None
    text: Any = None  # of a completion
    message: msgspec.Raw = _NONE  # of a whole chat; read where there is no usage


class _Item(msgspec.Struct, gc=False):
    """One vector: validated as JSON and skipped."""


class _Piece(msgspec.Struct, gc=False):
    """A whole answer, or one chunk of a streamed one."""

    id: str | None = None
    usage: msgspec.Raw = _NONE  # checked apart: a bad one does not spoil the answer
    choices: list[_Choice] | None = None
    error: object = None
    data: list[_Item] | None = None  # of embeddings
    results: list[_Item] | None = None  # of ranked documents


class _First(_Piece, gc=False):
    """The first piece of an answer, or all of it: the model of the others is not read."""

    model: Any = None


_FLOAT = re.compile(rb"(:\s*[0-9]{1,9})\.0+(?=\s*[,}])")
"""A whole number that is written as a float."""
_DECODER = msgspec.json.Decoder(_Piece)
_USAGE_DECODER = msgspec.json.Decoder(_Usage)
_FIRST_DECODER = msgspec.json.Decoder(_First)
_MESSAGE_DECODER = msgspec.json.Decoder(_Delta)
_JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class AnswerReader:
    """Follows one answer: fills `usage` and `finish_reasons`, and checks that it is complete."""

    __slots__ = (
        "_finished", "_has_bad_usage", "_hides_usage", "_model", "_num_choices", "_num_vectors", "_redactor",
        "_seen", "answer_id", "answer_model", "finish_reasons", "has_content", "tally", "usage",
    )  # fmt: skip

    def __init__(
        self, model: str, redactor: Redactor, request: ModelRequest, num_choices: int, num_vectors: int
    ) -> None:
        """`num_choices`, `num_vectors`: what was asked for. `redactor` cleans what is shown elsewhere."""
        self.usage = Usage()
        self.tally = Tally(self.usage, request)
        self.finish_reasons: list[str] = []
        self.answer_id = self.answer_model = ""
        self.has_content = False  # text, reasoning or a call of a tool; a role alone is none
        self._model = model
        self._redactor = redactor
        self._num_choices = num_choices
        self._num_vectors = num_vectors
        self._finished: set[int] = set()  # choices that have their finish_reason
        self._seen: set[int] = set()  # choices that have begun
        self._has_bad_usage = False
        self._hides_usage = not (isinstance(request, GenerationRequest) and request.wants_usage)

    def check_complete(self) -> None:
        """At the end of a stream: every choice that was asked for has its finish_reason. Raises ApiError."""
        if len(self._finished) < self._num_choices:
            count = f"{len(self._finished)} of {self._num_choices} choices have a finish_reason"
            what = f"its stream ended before the answer was complete: {count}"
            if self._finished == self._seen and self._finished:  # what it began, it has ended
                self.settle(is_complete=True)
                raise self._wrong_count(what)
            raise self.invalid(what)

    def read_whole(self, body: bytes) -> None:
        """Read a whole answer. Raises ApiError when it is an error, not an answer, or lacks a part.

        The usage is there also where a part is missing: the upstream charges for what it has made.
        """
        piece = self._decode(body, _FIRST_DECODER)
        self._read(piece)
        if not self.usage.completion_tokens:
            for choice in piece.choices or ():
                self._count_message(choice.message)
        self.tally.settle(is_complete=bool(piece.choices or piece.data or piece.results))
        self._check_count("choices", len(piece.choices or ()), self._num_choices)
        self._check_count("vectors", len(piece.data or ()), self._num_vectors)
        for choice in piece.choices or ():
            if choice.index >= self._num_choices:
                raise self._unasked(choice.index)

    def take(self, body: bytes) -> bool:
        """Read one chunk; False for that of the usage, where the client has not asked for it.

        Raises ApiError when it is an error or not a part of an answer.
        """
        piece = self._decode(body, _DECODER if self._seen else _FIRST_DECODER)
        for choice in piece.choices or ():
            if choice.index >= self._num_choices:
                raise self._unasked(choice.index)
        self._read(piece)
        return bool(piece.choices) or piece.usage is _NONE or not self._hides_usage

    def settle(self, *, is_complete: bool) -> None:
        """The stream has ended: estimate the usage that it lacks."""
        self.tally.settle(is_complete=is_complete)

    def _decode(
        self, body: bytes, decoder: msgspec.json.Decoder[_Piece] | msgspec.json.Decoder[_First]
    ) -> _Piece:
        try:
            if not body.isascii():
                body.decode()  # what the decoder below skips, it does not check
            piece = decoder.decode(body)
        except _JSON_ERRORS as error:
            raise self.invalid("it is not the JSON that the API specifies") from error
        if piece.error is not None:
            self._raise_error(body)
        if piece.usage is not _NONE and bytes(piece.usage) == b"null":
            piece.usage = _NONE
        if piece.choices is None and piece.usage is _NONE and piece.data is None and piece.results is None:
            raise self.invalid("it holds neither choices nor data")
        return piece

    def _check_count(self, what: str, num_found: int, num_asked: int) -> None:
        if num_asked and num_found != num_asked:
            message = f"it has {num_found} of {num_asked} {what}"
            raise self._wrong_count(message) if num_found else self.invalid(message)

    def _unasked(self, index: int) -> ApiError:
        return self.invalid(f"it has a choice of index {index}, of {self._num_choices} choices")

    def _read(self, piece: _Piece) -> None:
        if piece.id and not self.answer_id:
            self.answer_id = self._redactor.clean(piece.id, upstream_errors.MAX_NAME_CHARACTERS)
        if isinstance(piece, _First) and isinstance(piece.model, str):
            self.answer_model = self._redactor.clean(piece.model, upstream_errors.MAX_NAME_CHARACTERS)
        for choice in piece.choices or ():
            self._seen.add(choice.index)
            # Some repeat the finish_reason, and Azure sends content filter results after it.
            # An empty one in every chunk means none.
            if choice.finish_reason and choice.index not in self._finished:
                self._finish(choice.index, choice.finish_reason)
            if (delta := choice.delta) is not None:
                if content := delta.content:
                    self.has_content = True
                    is_text = content.__class__ is str
                    self.tally.num_characters += len(content) if is_text else length_in(content)
                if (
                    delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal
                    or delta.function_call or delta.reasoning_details or delta.audio
                ):  # fmt: skip
                    self.has_content = True
                    self._count_rest(delta)
            elif choice.text:
                self.has_content = True
                self.tally.num_characters += length_in(choice.text)
        if piece.usage is not _NONE:
            self._read_usage(piece.usage)

    def _finish(self, index: int, reason: str) -> None:
        self._finished.add(index)
        name = self._redactor.clean(reason, upstream_errors.MAX_NAME_CHARACTERS)
        self.finish_reasons.append(name)

    def _count_rest(self, delta: _Delta) -> None:
        """Count what there is beside the content."""
        calls = [part for call in delta.tool_calls or () for part in (call.function, call.custom)]
        reasoning = delta.reasoning_content or delta.reasoning  # some send both
        self.tally.num_characters += length_in([reasoning, *calls, delta.refusal, delta.function_call])

    def _count_message(self, message: msgspec.Raw) -> None:
        with contextlib.suppress(*_JSON_ERRORS):  # clients get it as it is
            if message is not _NONE:
                found = _MESSAGE_DECODER.decode(message)
                self.tally.num_characters += length_in(found.content)
                self._count_rest(found)

    def relayed(self, body: bytes | AsyncIterator[bytes], media_type: str = "application/json") -> Relayed:
        """The answer to pass on; its usage and finish reasons are filled while a stream is read."""
        return Relayed(body, self.usage, media_type, self.finish_reasons, self.answer_id, self.answer_model)

    def invalid(self, what: str) -> ApiError:
        """The error for an answer that violates the API."""
        return upstream_errors.invalid(self._model, what)

    def _wrong_count(self, what: str) -> ApiError:
        """The error for an upstream that works, but does not know `n`, or takes one input: the request's."""
        return upstream_errors.wrong_count(self._model, what)

    def failed(self, error: Exception, waiting_for: str) -> ApiError:
        """The error for a transport failure; `waiting_for` names the limit: "first token" or "idle"."""
        return upstream_errors.of_transport(error, self._model, waiting_for)

    def _raise_error(self, body: bytes) -> None:
        error = upstream_errors.of_error_body(body, self._redactor, 502)
        raise error or self.invalid("it holds an error of an unknown shape")

    def _read_usage(self, raw: msgspec.Raw) -> None:
        try:
            try:
                found = _USAGE_DECODER.decode(raw)
            except msgspec.ValidationError:
                found = _USAGE_DECODER.decode(_FLOAT.sub(rb"\1", bytes(raw)))
        except _JSON_ERRORS:
            if not self._has_bad_usage:  # once per answer: it may be in every chunk
                self._has_bad_usage = True
                logger.warning("upstream of model %r sent an invalid usage: not counted", self._model)
            return
        usage = self.usage  # what is known stays where a later chunk does not tell it
        completion_tokens = _completion_tokens(found)
        usage.completion_tokens = completion_tokens or usage.completion_tokens
        prompt_tokens, total = found.prompt_tokens, found.total_tokens
        if not prompt_tokens and isinstance(total, int) and 0 < total <= MAX_USAGE_TOKENS:
            prompt_tokens = max(0, total - usage.completion_tokens)
        usage.prompt_tokens = prompt_tokens or usage.prompt_tokens
        if completion_tokens:
            self.tally.report()
        of_prompt = found.prompt_tokens_details or _Details()
        usage.cached_tokens = of_prompt.cached_tokens or found.prompt_cache_hit_tokens or usage.cached_tokens
        written = of_prompt.cache_write_tokens or of_prompt.cache_creation_tokens
        usage.cache_write_tokens = written or usage.cache_write_tokens
        if found.completion_tokens_details is not None:
            usage.reasoning_tokens = (
                found.completion_tokens_details.reasoning_tokens or usage.reasoning_tokens
            )


def _completion_tokens(found: _Usage) -> int:
    """Count the answer with its reasoning, which xAI tells beside it."""
    details, written = found.completion_tokens_details, found.completion_tokens or 0
    thought = (details.reasoning_tokens or 0) if details is not None else 0
    is_beside = thought and found.total_tokens == (found.prompt_tokens or 0) + written + thought
    return written + thought if is_beside else written

"""What reads an answer of an API that is not OpenAI's: its deltas, usage and failures."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from gateway.answer import Delta, ToolCallDelta, Usage
from gateway.errors import ApiError
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.answer_reader import MAX_TOOL_CALLS
from gateway.providers.upstream.first_content import is_content
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.tally import Tally, length_of

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Everything that decoding an upstream's JSON raises."""


class ChatReader(ABC):
    """Follows one answer. `deltas` are those of what was read so far; their consumer removes them."""

    def __init__(self, model: str, redactor: Redactor) -> None:
        """`model` is the name here; `redactor` removes secrets from what errors repeat."""
        self.usage = Usage()
        self.tally = Tally(self.usage)
        self.deltas: list[Delta] = []
        self._model = model
        self._redactor = redactor
        self._has_told = False  # the last event, how much was generated; perhaps the same number again

    @property
    def has_content(self) -> bool:
        """Whether any of the `deltas` shows something to a client."""
        return any(map(is_content, self.deltas))

    @abstractmethod
    def read_whole(self, body: bytes) -> None:
        """Read an answer that is not streamed. Raises ApiError."""

    @abstractmethod
    def read(self, event: bytes) -> None:
        """Read one event of a stream. Raises ApiError, also for an event that reports one."""

    @abstractmethod
    def check_complete(self) -> None:
        """Add what an answer ends with. Raises ApiError for one that is not complete."""

    def take(self, event: bytes) -> bool:
        """Read one event, and count what it adds. Raises ApiError."""
        num_known, reported = len(self.deltas), self.usage.completion_tokens
        self._has_told = False
        self.read(event)
        self.tally.num_characters += sum(map(length_of, self.deltas[num_known:]))
        if self._has_told or self.usage.completion_tokens != reported:
            self.tally.report()
        return True

    def take_whole(self, body: bytes) -> None:
        """Read an answer that is not streamed, and complete its usage. Raises ApiError."""
        try:
            self.read_whole(body)
        finally:  # an answer that cannot be used was made all the same
            if not self.usage.completion_tokens:
                self.tally.num_characters += sum(map(length_of, self.deltas))
            self.settle(is_complete=bool(self.deltas or self.usage.completion_tokens))

    def settle(self, *, is_complete: bool) -> None:
        """The answer has ended: estimate the usage that it lacks."""
        self.tally.settle(is_complete=is_complete)

    def failed(self, error: Exception, waiting_for: str) -> ApiError:
        """The error for a transport failure; `waiting_for` names the limit: "first token" or "idle"."""
        return upstream_errors.of_transport(error, self._model, waiting_for)

    def invalid(self, what: str) -> ApiError:
        """The error for an answer that violates the API."""
        return upstream_errors.invalid(self._model, what)

    def not_json(self) -> ApiError:
        """The error for an answer that cannot be decoded."""
        return self.invalid("it is not the JSON that the API specifies")

    def reported(self, body: bytes) -> ApiError:
        """The error that an answer holds in its body."""
        found = upstream_errors.of_error_body(body, self._redactor, 502)
        return found or self.invalid("it holds an error of an unknown shape")


class BlockReader(ChatReader):
    """Follows an answer of content blocks with an index, of which each tool call is one."""

    def __init__(self, model: str, redactor: Redactor) -> None:
        super().__init__(model, redactor)
        self._calls: dict[int, int] = {}  # index of a block → of the call
        self._finish: Delta | None = None
        self._has_end = False  # what must follow the finish reason has come

    def check_complete(self) -> None:
        """Add the finish reason. Raises ApiError where it or what must follow it has not come."""
        if self._finish is None or not self._has_end:
            raise self.invalid("its stream ended before the answer was complete")
        self.deltas.append(self._finish)

    def _begin_call(self, index: int, call_id: str, name: str) -> None:
        if len(self._calls) >= MAX_TOOL_CALLS:
            raise upstream_errors.too_long(self._model, f"it has more than {MAX_TOOL_CALLS} tool calls")
        call = ToolCallDelta(len(self._calls), "", call_id, name)
        self._calls[index] = call.index
        self.deltas.append(Delta(0, tool_calls=[call]))

    def _add_arguments(self, index: int, text: str) -> None:
        if index not in self._calls:
            raise self.invalid("it has the arguments of a tool call that has not begun")
        if text:
            self.deltas.append(Delta(0, tool_calls=[ToolCallDelta(self._calls[index], text)]))

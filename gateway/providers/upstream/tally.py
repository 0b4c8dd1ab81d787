"""Counts what an upstream's answer holds, for usage that the upstream does not tell, or not to the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gateway.answer import Delta, Usage
from gateway.providers.upstream.transport import ConnectionBroken, ReplyTimedOut
from gateway.requests.token_estimate import estimate_input, estimate_tokens
from gateway.requests.types import ModelRequest

_TEXT_KEYS = ("text", "thinking", "arguments", "input")
"""Where content parts, functions and custom tools hold their texts."""
MAX_DEPTH = 8
"""Known shapes have at most four levels."""


class Tally:
    """What was received since the last report of an answer's usage. `request`: what was sent."""

    __slots__ = ("_is_complete", "num_characters", "request", "usage")

    def __init__(self, usage: Usage, request: ModelRequest | None = None) -> None:
        self.usage = usage
        self.request = request
        self.num_characters = 0  # of text, reasoning and tool calls' arguments
        self._is_complete = False

    def report(self) -> None:
        """The usage is now that of all that was counted."""
        self.num_characters = 0

    def settle(self, *, is_complete: bool = False) -> None:
        """Estimate what is missing in the usage, also of text after its last report. Idempotent."""
        usage, num_characters = self.usage, self.num_characters
        self.num_characters = 0
        self._is_complete |= is_complete
        if num_characters:
            usage.completion_tokens += estimate_tokens(num_characters)
            usage.is_estimated = True
        if not usage.prompt_tokens and self.request is not None:
            usage.prompt_tokens = estimate_input(self.request)
            usage.is_estimated = True

    def lost(self, error: BaseException, *, has_begun: bool) -> list[Usage]:
        """The usage of a call that ends with this error, in place of an answer; none where nothing ran.

        `has_begun`: the upstream has accepted the request.
        """
        is_cut_off = isinstance(error, asyncio.CancelledError) or isinstance(error.__cause__, ReplyTimedOut)
        is_cut_off |= has_begun and isinstance(error.__cause__, ConnectionBroken)
        if not is_cut_off and not self.num_characters and not self._is_complete:
            return []
        self.settle()
        return [self.usage]


def length_of(delta: Delta) -> int:
    """Characters of a delta that a model has generated."""
    return len(delta.text) + len(delta.reasoning) + sum(len(call.arguments) for call in delta.tool_calls)


def length_in(value: Any, depth: int = MAX_DEPTH) -> int:  # noqa: ANN401 - any JSON
    """Characters of the texts in a value."""
    if isinstance(value, str):
        return len(value)
    if not depth or not isinstance(value, list | dict):
        return 0
    if isinstance(value, list):
        return sum(length_in(each, depth - 1) for each in value)
    arguments = value.get("arguments")
    if isinstance(arguments, dict):  # some send the object itself
        value = {**value, "arguments": json.dumps(arguments)}
    return sum(length_in(value.get(key), depth - 1) for key in _TEXT_KEYS)

"""Counts what an upstream's answer holds, for usage that the upstream does not tell, or not to the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from gateway.answer import Delta, Usage
from gateway.providers.upstream.transport import ConnectionBroken, ReplyTimedOut
from gateway.requests.token_estimate import estimate_input, estimate_tokens
from gateway.requests.types import ModelRequest

_TEXT_KEYS = ("text", "thinking", "arguments", "input")
"""Where content parts, functions and custom tools hold their texts."""


class Tally:
    """What was received since the last report of an answer's usage. `request`: what was sent."""

    __slots__ = ("_num_characters", "request", "usage")

    def __init__(self, usage: Usage, request: ModelRequest | None = None) -> None:
        self.usage = usage
        self.request = request
        self._num_characters = 0

    def add(self, num_characters: int) -> None:
        """Count a piece of text, reasoning or a tool call's arguments."""
        self._num_characters += num_characters

    def report(self) -> None:
        """The usage is now that of all that was counted."""
        self._num_characters = 0

    def settle(self, *, is_complete: bool = False) -> None:
        """Estimate what is missing in the usage: there comes no more. Idempotent."""
        usage, num_characters = self.usage, self._num_characters
        self._num_characters = 0
        if num_characters and not (is_complete and usage.completion_tokens):
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
        if not is_cut_off and not self._num_characters:
            return []
        self.settle()
        return [self.usage]


def length_of(delta: Delta) -> int:
    """Characters of a delta that a model has generated."""
    return len(delta.text) + len(delta.reasoning) + sum(len(call.arguments) for call in delta.tool_calls)


def length_in(raw: msgspec.Raw) -> int:
    """Characters of the texts in a JSON value, which is valid UTF-8."""
    found = bytes(raw)
    if b"\\" not in found and found[:1] == b'"':
        return len(found if found.isascii() else found.decode()) - 2
    try:
        return _length(json.loads(found))  # takes half of a surrogate pair, too
    except RecursionError:
        return len(found)


def _length(value: Any) -> int:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_length, value))
    if not isinstance(value, dict):
        return 0
    found = (value[key] for key in _TEXT_KEYS if key in value)
    return sum(len(json.dumps(each)) if isinstance(each, dict) else _length(each) for each in found)

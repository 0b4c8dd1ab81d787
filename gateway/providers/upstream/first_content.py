"""Where the content of a streamed answer begins: what comes before it may still be withdrawn."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.answer import Delta

_CONTENT_FIELDS = (
    "content", "reasoning_content", "reasoning", "reasoning_details", "refusal", "tool_calls",
    "function_call", "audio",
)  # fmt: skip


class _Choice(msgspec.Struct, gc=False):
    text: Any = None  # of a completion
    delta: dict[str, Any] | None = None


class _Piece(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None


_DECODER = msgspec.json.Decoder(_Piece)


def is_content(delta: Delta) -> bool:
    """Whether a client sees text, reasoning or a call of a tool in it."""
    return bool(delta.text or delta.reasoning or delta.tool_calls)


def has_content(event: bytes) -> bool:
    """Whether an event of OpenAI's API, which a reader has accepted, holds any: a role alone is none."""
    for choice in _DECODER.decode(event).choices or ():
        delta = choice.delta or {}
        if choice.text or any(delta.get(name) for name in _CONTENT_FIELDS):
            return True
    return False

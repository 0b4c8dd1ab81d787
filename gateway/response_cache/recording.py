"""An answer as bytes for the cache, and back: a replay is a proper stream with the original finish reason.

Its usage is that of the original answer: what it took to make, not what the hit took.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from gateway.answer import Delta, Generated, Relayed, Usage


class RecordedGeneration(msgspec.Struct, frozen=True, tag="generated"):
    """What a `Generated` answer consisted of."""

    deltas: list[Delta]
    usage: Usage
    shows_reasoning: bool
    offers_tools: bool
    ignored_fields: list[str]


class RecordedRelay(msgspec.Struct, frozen=True, tag="relayed"):
    """What a `Relayed` answer consisted of; one piece when it was not streamed."""

    pieces: list[bytes]
    is_stream: bool
    media_type: str
    usage: Usage
    finish_reasons: list[str]
    response_id: str


_TOOL_CALL = re.compile(rb'"tool_calls"\s*:\s*\[\s*\{')
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(RecordedGeneration | RecordedRelay)


def record(answer: Generated | Relayed, items: Sequence[Any]) -> bytes:
    """The answer, of which `items` are all deltas or pieces."""
    if isinstance(answer, Generated):
        return _ENCODER.encode(
            RecordedGeneration(
                list(items),
                answer.usage,
                answer.shows_reasoning,
                answer.offers_tools,
                list(answer.ignored_fields),
            )
        )
    is_stream = not isinstance(answer.body, bytes)
    return _ENCODER.encode(
        RecordedRelay(
            list(items),
            is_stream,
            answer.media_type,
            answer.usage,
            answer.finish_reasons,
            answer.response_id,
        )
    )


def ends_of(answer: Generated | Relayed, items: Sequence[Any]) -> list[str]:
    """The finish reason of each choice; "tool_calls" too where a forced call ends with another one."""
    if isinstance(answer, Generated):
        reasons = [str(delta.finish_reason) for delta in items if delta.finish_reason is not None]
        has_calls = any(delta.tool_calls for delta in items)
    else:
        reasons = list(answer.finish_reasons)
        has_calls = _TOOL_CALL.search(b"".join(items)) is not None
    return ["tool_calls" if has_calls and reason == "stop" else reason for reason in reasons]


class Unreadable(Exception):
    """What is stored is no recorded answer."""


def _read(recorded: bytes) -> RecordedGeneration | RecordedRelay:
    try:
        found: RecordedGeneration | RecordedRelay = _DECODER.decode(recorded)
    except (ValueError, RecursionError):
        raise Unreadable from None
    if isinstance(found, RecordedRelay) and not found.is_stream and len(found.pieces) != 1:
        raise Unreadable
    return found


def replay(recorded: bytes) -> Generated | Relayed:
    """The recorded answer, ready to be sent again. Raises Unreadable."""
    found = _read(recorded)
    if isinstance(found, RecordedGeneration):
        return Generated(
            _iterate(found.deltas),
            found.usage,
            shows_reasoning=found.shows_reasoning,
            offers_tools=found.offers_tools,
            ignored_fields=found.ignored_fields,
        )
    body = _iterate(found.pieces) if found.is_stream else found.pieces[0]
    return Relayed(body, found.usage, found.media_type, found.finish_reasons, found.response_id)


def recorded_text(recorded: bytes) -> str:
    """The visible text of a recorded generation; "" of anything else. Raises Unreadable."""
    found = _read(recorded)
    return "".join(delta.text for delta in found.deltas) if isinstance(found, RecordedGeneration) else ""


async def _iterate(items: Sequence[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item

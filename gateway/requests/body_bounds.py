"""How much one JSON body may hold, whatever its bytes.

msgspec decodes under the GIL: in a thread too it would keep other requests waiting. So what is too much is
refused before it is decoded, and long lists right after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import InvalidRequest

SMALL_BYTES = 64 * 1024
"""A body of this size decodes in a millisecond, whatever it holds."""
MAX_STRINGS = 100_000
"""Names of members included; a million take half a second."""
MAX_CONTAINERS = 100_000
"""Objects and arrays."""
MAX_VALUES = 2_000_000
"""Elements of an array of token ids, for example."""
MAX_FIELDS = 1000
"""Fields of the request itself."""
MAX_ITEMS = 4096
"""Messages, items, tools or texts of one request; OpenAI takes half as many."""
MAX_PARTS = 10_000
"""Parts of all messages together."""
MAX_NUMBERS = 1_000_000
"""Token ids of one list."""
_LISTS = ("messages", "input", "items", "tools", "functions", "prompt", "requests", "tokens")
_MESSAGES = ("messages", "input", "items")
_PARTS = ("content", "tool_calls", "reasoning_details", "summary", "output")


def check_size(raw: bytes) -> None:
    """Raise InvalidRequest for a body whose decoding would keep others waiting. Takes about 2 ms per MB."""
    if len(raw) <= SMALL_BYTES:
        return
    if b"\\" in raw:  # perhaps of a quote inside a string
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if (num_strings := raw.count(b'"') // 2) > MAX_STRINGS:
        raise _too_many("strings", num_strings, MAX_STRINGS)
    outside = b"".join(raw.split(b'"')[::2])
    if (num_containers := outside.count(b"{") + outside.count(b"[")) > MAX_CONTAINERS:
        raise _too_many("objects and arrays", num_containers, MAX_CONTAINERS)
    if (num_values := outside.count(b",")) > MAX_VALUES:
        raise _too_many("values", num_values, MAX_VALUES)


def check_items(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest, with the field, for too long a list."""
    if len(body) > MAX_FIELDS:
        raise _too_many("fields", len(body), MAX_FIELDS)
    for name in _LISTS:
        found = body.get(name)
        if isinstance(found, list):
            is_numbers = bool(found) and isinstance(found[0], int)
            _check_length(name, len(found), MAX_NUMBERS if is_numbers else MAX_ITEMS)
            if name in _MESSAGES and not is_numbers:
                _check_parts(name, found)


def _check_parts(name: str, messages: Sequence[object]) -> None:
    known = [message for message in messages if isinstance(message, dict)]
    for field in _PARTS:
        count = 0
        for message in known:  # a loop, as generators cost more
            if isinstance(parts := message.get(field), list):
                count += len(parts)
        if count > MAX_PARTS:
            _check_length(f"{name}[].{field}", count, MAX_PARTS)


def _check_length(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(
            f"'{name}' has {count} items. Send at most {limit}.", param=name, code="array_above_max_length"
        )


def _too_many(what: str, count: int, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"The body has {count} {what}. Send at most {limit}, in several requests.", code="request_too_complex"
    )

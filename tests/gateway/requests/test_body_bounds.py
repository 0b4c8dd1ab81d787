"""A body costs bounded time whatever it holds; what real clients send passes."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.requests import body_bounds
from gateway.requests.body_bounds import MAX_ITEMS, MAX_PARTS, check_items, check_size
from gateway.requests.parse import decode_body

SIZE = 15_000_000
LIMIT_S = 0.25
"""CPU seconds on a busy machine. Without bounds 15 MB took 0.15 to 1 s to decode, and more to read."""


def filled(piece: bytes, before: bytes = b'{"messages":[', after: bytes = b"0]}") -> bytes:
    return before + piece * ((SIZE - len(before) - len(after)) // len(piece)) + after


HOSTILE = {
    "items": filled(b'{"role":"user","content":"hi"},'),
    "arrays": filled(b"[],"),
    "objects": filled(b"{},"),
    "strings": filled(b'"",'),
    "numbers": filled(b"1,"),
    "members": b"{" + b",".join(b'"%d":1' % number for number in range(1_200_000)) + b"}",
    "nested": b'{"a":' + b"[" * (SIZE // 2) + b"]" * (SIZE // 2) + b"}",
    "escaped quotes": filled(b'"\\"",'),
    "backslashes": filled(b'"\\\\",'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_refused_in_bounded_time(name: str) -> None:
    started_s = time.process_time()
    with pytest.raises(InvalidRequest, match="Send at most") as caught:
        decode_body(HOSTILE[name])
    assert time.process_time() - started_s < LIMIT_S
    assert caught.value.code == "request_too_complex"


@pytest.mark.parametrize("text", ["word, ", 'say "this", [then] {that}, ', "\\", "é" * 3, "\n"])
def test_long_texts_pass(text: str) -> None:
    body = {"messages": [{"role": "user", "content": text * (8_000_000 // len(json.dumps(text)))}]}
    started_s = time.process_time()
    assert decode_body(json.dumps(body).encode()) == body
    assert time.process_time() - started_s < LIMIT_S


def test_what_agents_send_passes() -> None:
    part = {"type": "text", "text": "x"}
    body = {"messages": [{"role": "user", "content": [part, part]}] * 4000, "prompt": [1] * 500_000}
    assert decode_body(json.dumps(body).encode()) == body


@pytest.mark.parametrize("name", ["messages", "input", "items", "tools", "functions", "prompt"])
def test_long_lists_are_refused_by_name(name: str) -> None:
    body = {name: [{}] * (MAX_ITEMS + 1)}
    with pytest.raises(InvalidRequest, match=f"'{name}' has {MAX_ITEMS + 1} items") as caught:
        decode_body(json.dumps(body).encode())
    assert caught.value.param == name


@pytest.mark.parametrize("field", ["content", "tool_calls"])
def test_parts_of_all_messages_count_together(field: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"'messages\[\].{field}' has {MAX_PARTS + 2} items"):
        check_items({"messages": [{field: [{}] * (MAX_PARTS // 2 + 1)}] * 2})


def test_a_body_of_many_fields_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="5000 fields"):
        decode_body(json.dumps({f"f{number}": 1 for number in range(5000)}).encode())


JSON = st.recursive(
    st.none() | st.integers() | st.text('"\\{[,:]}a', max_size=6),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text('"\\{[', max_size=3), each, max_size=4),
    max_leaves=20,
)


def count(value: object) -> tuple[int, int]:
    """Strings, and containers, of a value."""
    if isinstance(value, dict):
        inner = [count(each) for each in value.values()]
        return len(value) + sum(each[0] for each in inner), 1 + sum(each[1] for each in inner)
    if isinstance(value, list):
        inner = [count(each) for each in value]
        return sum(each[0] for each in inner), 1 + sum(each[1] for each in inner)
    return int(isinstance(value, str)), 0


@given(JSON)
def test_counts_are_exact_whatever_strings_hold(value: object) -> None:
    strings, containers = count(value)
    raw = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_bounds, "SMALL_BYTES", 0)
        patch.setattr(body_bounds, "MAX_STRINGS", strings)
        patch.setattr(body_bounds, "MAX_CONTAINERS", containers)
        check_size(raw)
        patch.setattr(body_bounds, "MAX_CONTAINERS", containers - 1)
        with pytest.raises(InvalidRequest, match="objects and arrays"):
            check_size(raw)
        patch.setattr(body_bounds, "MAX_STRINGS", strings - 1)
        with pytest.raises(InvalidRequest, match="strings"):
            check_size(raw)

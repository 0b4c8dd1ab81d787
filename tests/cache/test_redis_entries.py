"""Values of Redis that this code did not write are told from those that it did."""

from __future__ import annotations

import contextlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy import float16
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from cache.entry import Entry, Selector
from cache.evidence import Verdict
from cache.redis_entries import Change, Undecodable, decode_change, decode_entry, why
from tests.cache.entries import entry_of, key_of, unit

VECTOR = unit(1).astype(float16)
ENTRY = msgspec.msgpack.encode(entry_of(1))


def test_what_was_written_is_read() -> None:
    entry, vector = decode_entry(key_of(1), ENTRY, VECTOR.tobytes())
    assert entry.text == "question 1" and vector is not None and vector.tolist() == VECTOR.tolist()
    assert decode_entry(key_of(1), ENTRY, b"")[1] is None
    for change in (Change(b"a", b"k"), Change(b"a", selector=Selector("tag", "x", None))):
        assert decode_change({b"change": msgspec.msgpack.encode(change)}) == change


def other(**fields: object) -> bytes:
    entry: Entry = entry_of(1)
    for name, value in fields.items():
        setattr(entry, name, value)
    return msgspec.msgpack.encode(entry)


@pytest.mark.parametrize(
    ("entry", "vector"),
    [
        (b"", b""),
        (ENTRY[:-3], b""),
        (b"\x91" * 100_000, b""),
        (other(key=key_of(2)), b""),
        (other(expires_s=float("nan")), b""),
        (other(expires_s=float("inf")), b""),
        (other(saved_tokens=-5), b""),
        (ENTRY, VECTOR.tobytes()[:-1]),
        (ENTRY, (VECTOR * 3).tobytes()),
        (ENTRY, np.full(16, np.nan, float16).tobytes()),
    ],
)
def test_what_no_gateway_wrote_is_refused(entry: bytes, vector: bytes) -> None:
    with pytest.raises(Undecodable):
        decode_entry(key_of(1), entry, vector)


@given(st.binary(max_size=300), st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(content: bytes, vector: bytes) -> None:
    for read in (
        lambda: decode_entry(content[:32], content, vector),
        lambda: decode_change({b"change": content}),
    ):
        with contextlib.suppress(Undecodable):
            read()


@pytest.mark.parametrize("fields", [{}, None, {b"other": b"x"}, {b"change": b"\xff"}])
def test_other_items_of_the_log_are_refused(fields: object) -> None:
    with pytest.raises(Undecodable):
        decode_change(fields)


def test_a_verdict_that_cannot_be_is_refused() -> None:
    change = Change(b"a", b"k", verdict=Verdict("m", float("nan"), True, "alice"))
    with pytest.raises(Undecodable):
        decode_change({b"change": msgspec.msgpack.encode(change)})


def test_reasons_are_words_and_quote_nothing() -> None:
    assert why(ReadOnlyError("secret")) == "it is a read-only replica"
    assert why(OutOfMemoryError("secret")) == "it has no memory left (maxmemory)"
    assert why(ResponseError("secret")) == "it refuses the command"
    assert why(ConnectionError("redis://:secret@host")) == "it does not answer (ConnectionError)"

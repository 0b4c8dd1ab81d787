"""Frames survive any split of the stream, and errors survive the way to the gateway."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import (
    AdapterError,
    AdapterExists,
    AdapterGone,
    FrameError,
    PromptTooLong,
    QueueFull,
    RejectReason,
    RequestError,
    TemplateError,
)
from backend.server import wire
from backend.server.wire import HEADER_BYTES, FrameReader, Rejected, encode_frame, encode_message


@given(bodies=st.lists(st.binary(max_size=40), max_size=8), data=st.data())
def test_frames_survive_any_split(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, bodies))
    reader, got = FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += reader.feed(stream[:size])
        stream = stream[size:]
    assert got == bodies and reader.feed(encode_frame(b"next")) == [b"next"]


def test_a_length_above_the_limit_is_an_error_before_its_bytes_arrive() -> None:
    with pytest.raises(FrameError, match="101 bytes"):
        FrameReader(max_frame_bytes=100).feed((101).to_bytes(4, "big"))


def test_a_body_above_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 10)
    with pytest.raises(FrameError, match="11 bytes"):
        encode_frame(b"x" * 11)


ERRORS = [
    RequestError("no such token", "prompt"),
    RequestError("no field is at fault"),
    PromptTooLong("too long", "messages"),
    AdapterGone("not loaded", "model"),
    QueueFull("full", 2.5),
    AdapterError("no such file"),
    AdapterExists("the name is taken"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_rejection_is_the_same_error_on_the_other_side(
    error: RequestError | AdapterError | QueueFull,
) -> None:
    body = encode_message(Rejected.from_error("a", error))[HEADER_BYTES:]
    message = msgspec.msgpack.decode(body, type=Rejected)
    found = message.to_error()
    assert message.request_id == "a" and type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


def test_every_reason_has_its_error() -> None:
    assert {error.reason for error in ERRORS} == set(get_args(RejectReason))


def test_a_subclass_crosses_as_the_nearest_known_error() -> None:
    found = Rejected.from_error("a", TemplateError("bad template", "messages")).to_error()
    assert type(found) is RequestError and found.param == "messages"

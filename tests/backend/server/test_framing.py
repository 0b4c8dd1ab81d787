from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import FrameError
from backend.server import framing
from backend.server.framing import FrameReader, encode_frame


@given(bodies=st.lists(st.binary(max_size=40), max_size=8), data=st.data())
def test_frames_survive_any_split(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, bodies))
    reader, got = FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += reader.feed(stream[:size])
        stream = stream[size:]
    assert got == bodies and reader.num_pending_bytes == 0


def test_a_length_above_the_limit_is_an_error_before_its_bytes_arrive() -> None:
    with pytest.raises(FrameError, match="101 bytes"):
        FrameReader(max_frame_bytes=100).feed((101).to_bytes(4, "big"))


def test_a_body_above_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_FRAME_BYTES", 10)
    with pytest.raises(FrameError, match="11 bytes"):
        encode_frame(b"x" * 11)

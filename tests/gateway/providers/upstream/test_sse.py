"""The event reader agrees with the standard on every cut of every dialect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.upstream import sse
from gateway.providers.upstream.sse import EventReader
from gateway.providers.upstream.transport import AnswerTooLong

CASES = {
    "plain": (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    "no space": (b"data:a\n\n", [b"a"]),
    "only one space is dropped": (b"data:  a\n\n", [b" a"]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "cr": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "mixed": (b"data: a\r\n\ndata: b\r\r\n", [b"a", b"b"]),
    "comments and fields": (b": hi\nevent: x\nid: 1\nretry: 5\ndata: a\n\n: bye\n\n", [b"a"]),
    "several data lines": (b"data: {\ndata: }\n\n", [b"{\n}"]),
    "empty data": (b"data\n\ndata:\n\n", [b"", b""]),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "blank lines": (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
    "no last blank line": (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
    "other fields that begin alike": (b"database: x\ndata: a\n\n", [b"a"]),
}


def read(pieces: list[bytes]) -> list[bytes]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.close()


@pytest.mark.parametrize(("text", "events"), CASES.values(), ids=CASES.keys())
def test_every_single_cut_gives_the_same_events(text: bytes, events: list[bytes]) -> None:
    assert read([text]) == events
    assert read([text[i : i + 1] for i in range(len(text))]) == events
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]]) == events


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.data(),
)
def test_any_cuts_give_back_what_was_sent(texts: list[str], end: bytes, data: st.DataObject) -> None:
    lines = [b"data: " + text.encode() + end + end for text in texts]
    raw = b": keep-alive" + end + end + b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert read(pieces) == [text.encode() for text in texts]


@given(st.lists(st.binary(max_size=40)))
def test_random_bytes_do_not_depend_on_cuts(pieces: list[bytes]) -> None:
    assert read(pieces) == read([b"".join(pieces)])


@pytest.mark.parametrize("line", [b"data: xxxxxxxx\n", b"xxxxxxxxxxxxxxx"])
def test_event_without_end_is_refused(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    reader = EventReader()
    with pytest.raises(AnswerTooLong):
        for _ in range(50):
            reader.feed(line)

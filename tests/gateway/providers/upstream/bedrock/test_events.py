"""Event streams of AWS, cut anywhere and damaged anywhere."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.upstream.bedrock.events import AwsEventReader
from gateway.providers.upstream.transport import ConnectionBroken
from tests.gateway.providers.upstream.bedrock.aws_events import event, exception, message

STREAM = event("messageStart", role="assistant") + exception("throttlingException", "Slow \u00e9.")
EVENTS = [
    {"messageStart": {"role": "assistant", "p": "abc"}},
    {"throttlingException": {"message": "Slow \u00e9."}},
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=5))
def test_events_are_the_same_wherever_a_stream_is_cut(cuts: list[int]) -> None:
    reader, found, start = AwsEventReader(), [], 0
    for end in [*sorted(cuts), len(STREAM)]:
        found += reader.feed(STREAM[start:end])
        start = end
    assert [msgspec.json.decode(each) for each in found + reader.close()] == EVENTS


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_a_damaged_byte_is_never_an_event(place: int, flipped: int) -> None:
    damaged = bytearray(STREAM)
    damaged[place] ^= flipped
    reader = AwsEventReader()
    try:
        found = reader.feed(bytes(damaged))
    except ConnectionBroken:
        return
    assert [msgspec.json.decode(each) for each in found] in ([], EVENTS[:1])


def test_errors_and_events_without_a_payload() -> None:
    error = message(b"", message_type="error", error_code="500", error_message='It is "down".')
    reader = AwsEventReader()
    found = reader.feed(error + message(b"", message_type="event", event_type="x"))
    assert [msgspec.json.decode(each) for each in found] == [
        {"error": {"message": 'It is "down".'}, "payload": {}},
        {"x": {}},
    ]


def test_an_unknown_header_type_is_damage() -> None:
    raw = bytearray(message(b"{}", message_type="event"))
    position = raw.index(b":message-type") + len(b":message-type")
    raw[position] = 99
    with pytest.raises(ConnectionBroken):
        AwsEventReader().feed(bytes(raw))

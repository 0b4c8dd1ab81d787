"""Converse's answers as deltas, usage and finish reason; streams that end anywhere."""

from __future__ import annotations

import json

import pytest

from gateway.answer import Delta
from gateway.errors import ApiError
from gateway.providers.upstream.bedrock.events import AwsEventReader
from gateway.providers.upstream.bedrock.reader import ConverseReader
from gateway.providers.upstream.redaction import Redactor
from tests.gateway.providers.upstream.anthropic.calls import collected, shown
from tests.gateway.providers.upstream.bedrock.aws_events import event, exception
from tests.gateway.providers.upstream.bedrock.calls import ANSWER, EVENTS, EXPECTED, USAGE, begin, piece

END = event("messageStop", stopReason="end_turn") + event("metadata", usage=USAGE)


def read(raw: bytes, *, size: int = 0) -> tuple[ConverseReader, list[Delta]]:
    """Read a stream in pieces of this size; 0: at once."""
    reader, events = ConverseReader("here", Redactor("canary")), AwsEventReader()
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)] if size else [raw]
    for each in pieces:
        for found in events.feed(each):
            reader.read(found)
    reader.check_complete()
    return reader, reader.deltas


def counts(reader: ConverseReader) -> tuple[int, int, int]:
    return reader.usage.prompt_tokens, reader.usage.cached_tokens, reader.usage.completion_tokens


def test_a_whole_answer() -> None:
    reader = ConverseReader("here", Redactor())
    reader.read_whole(json.dumps(ANSWER).encode())
    assert shown(collected(reader.deltas)) == EXPECTED
    assert counts(reader) == (22, 16, 9)


@pytest.mark.parametrize("size", [0, 1, 7, 64])
def test_a_stream(size: int) -> None:
    reader, found = read(EVENTS, size=size)
    assert shown(collected(found)) == EXPECTED
    assert counts(reader) == (22, 16, 9)


def test_a_stream_that_ends_anywhere_is_whole_or_an_error() -> None:
    for end in range(len(EVENTS)):
        with pytest.raises(ApiError, match="before the answer was complete"):
            read(EVENTS[:end])


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("guardrail_intervened", "content_filter"),
        ("something_new", "stop"),
    ],
)
def test_stop_reasons(reason: str, expected: str) -> None:
    raw = event("messageStop", stopReason=reason) + event("metadata", usage=USAGE)
    assert read(raw)[1][-1].finish_reason == expected


@pytest.mark.parametrize(
    ("kind", "status"),
    [("throttlingException", 429), ("validationException", 400), ("modelStreamErrorException", 502)],
)
def test_an_exception_in_a_stream_is_the_upstreams(kind: str, status: int) -> None:
    with pytest.raises(ApiError, match=r"Oh, \*\*\*\.") as caught:
        read(piece(0, text="a") + exception(kind, "Oh, canary."))
    assert (caught.value.status, caught.value.code) == (status, kind)


@pytest.mark.parametrize(
    "raw",
    [
        piece(5, toolUse={"input": "{}"}) + END,
        piece(0, image={"source": {"bytes": ""}}) + END,
        begin(0, "x", "f") + piece(0, toolUse={"input": {}}) + END,
        event("messageStop", stopReason="malformed_tool_use"),
        event("metadata", usage={"inputTokens": -1}),
        event("contentBlockStop", contentBlockIndex="a"),
    ],
    ids=["arguments of no call", "an image", "an object", "a failure", "negative count", "wrong type"],
)
def test_what_violates_the_api_is_an_error(raw: bytes) -> None:
    with pytest.raises(ApiError, match="invalid answer"):
        read(raw)

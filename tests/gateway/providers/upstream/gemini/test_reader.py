"""Gemini's answers as deltas, usage and finish reasons; streams that end anywhere."""

from __future__ import annotations

import json

import pytest

from gateway.answer import Delta
from gateway.errors import ApiError
from gateway.fleet.retries import cause_of
from gateway.providers.upstream.answer_reader import MAX_TOOL_CALLS
from gateway.providers.upstream.gemini.reader import CandidateReader
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.sse import EventReader
from tests.gateway.providers.upstream.anthropic.calls import collected, shown
from tests.gateway.providers.upstream.gemini.calls import ANSWER, EVENTS, EXPECTED, PARTS, event


def read(raw: bytes, *, size: int = 0, num_choices: int = 1) -> tuple[CandidateReader, list[Delta]]:
    """Read a stream in pieces of this size; 0: at once."""
    reader, events = CandidateReader("here", Redactor("canary"), num_choices), EventReader()
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)] if size else [raw]
    for piece in pieces:
        for found in events.feed(piece):
            reader.read(found)
    for found in events.close():
        reader.read(found)
    reader.check_complete()
    return reader, reader.deltas


def counts(reader: CandidateReader) -> tuple[int, int, int, int]:
    usage = reader.usage
    return usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens


def test_a_whole_answer() -> None:
    reader = CandidateReader("here", Redactor(), 1)
    reader.read_whole(json.dumps(ANSWER).encode())
    assert shown(collected(reader.deltas)) == EXPECTED
    assert counts(reader) == (22, 16, 9, 3)


@pytest.mark.parametrize("size", [0, 1, 2, 7, 64])
def test_a_stream(size: int) -> None:
    reader, found = read(EVENTS, size=size)
    assert shown(collected(found)) == EXPECTED
    assert counts(reader) == (22, 16, 9, 3)


def test_a_stream_that_ends_anywhere_is_whole_or_an_error() -> None:
    num_whole = 0
    for end in range(0, len(EVENTS) + 1):
        try:
            _, found = read(EVENTS[:end])
        except ApiError as error:
            assert error.code == "upstream_invalid_response"
        else:
            num_whole += 1
            assert shown(collected(found)) == EXPECTED
    assert num_whole == 5  # without the last line feeds


def test_numbers_in_arguments_stay_as_written() -> None:
    raw = EVENTS.replace(b"1.1,", b"1.100,")
    assert raw != EVENTS
    assert collected(read(raw)[1]).tool_calls[0].arguments == '{"a": [1.100, 2]}'


def test_calls_without_an_id_get_one() -> None:
    part = {"functionCall": {"name": "now"}}
    calls = collected(read(event([part, part], finishReason="STOP"))[1]).tool_calls
    assert [call.arguments for call in calls] == ["{}", "{}"]
    assert calls[0].call_id.startswith("call_") and calls[0].call_id != calls[1].call_id


def test_candidates_are_choices() -> None:
    raw = event([{"text": "a"}], finishReason="STOP") + event([{"text": "b"}], finishReason="STOP", index=1)
    found = read(raw, num_choices=2)[1]
    assert [(delta.index, delta.text) for delta in found if delta.text] == [(0, "a"), (1, "b")]
    with pytest.raises(ApiError, match="index 1, of 1") as found_more:
        read(raw)
    with pytest.raises(ApiError, match="2 of 3 candidates") as found_less:
        read(raw, num_choices=3)
    assert found_more.value.code == found_less.value.code == "upstream_wrong_count"


def test_an_answer_with_too_few_candidates_is_charged() -> None:
    reader = CandidateReader("here", Redactor(), 2)
    with pytest.raises(ApiError, match="1 of 2 candidates"):
        reader.take_whole(json.dumps(ANSWER).encode())
    assert reader.tally.lost(ApiError("x"), has_begun=True) == [reader.usage]
    assert counts(reader) == (22, 16, 9, 3)


def test_counts_stay_where_a_later_event_does_not_tell_them() -> None:
    reader, _ = read(EVENTS + b'data: {"usageMetadata": {"candidatesTokenCount": 9}}\n\n')
    assert counts(reader) == (22, 16, 9, 3)


def test_too_many_calls_are_not_asked_for_again() -> None:
    part = {"functionCall": {"name": "now"}}
    with pytest.raises(ApiError, match="tool calls") as caught:
        read(event([part] * (MAX_TOOL_CALLS + 1), finishReason="STOP"))
    assert cause_of(caught.value) is None


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("SOMETHING_NEW", "stop"),
    ],
)
def test_finish_reasons(reason: str, expected: str) -> None:
    assert read(event(PARTS[:2], finishReason=reason))[1][-1].finish_reason == expected


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "MISSING_THOUGHT_SIGNATURE"])
def test_an_answer_that_failed_is_an_error(reason: str) -> None:
    with pytest.raises(ApiError, match=reason):
        read(event([], finishReason=reason))


def test_a_blocked_prompt_is_an_error_of_the_request() -> None:
    with pytest.raises(ApiError, match="blocked the request: SAFETY") as caught:
        read(b'data: {"promptFeedback": {"blockReason": "SAFETY"}}\n\n')
    assert (caught.value.status, caught.value.code) == (400, "content_filter")


def test_an_error_in_a_stream_is_the_upstreams() -> None:
    error = {"code": 503, "message": "Overloaded, says canary", "status": "UNAVAILABLE"}
    with pytest.raises(ApiError, match=r"Overloaded, says \*\*\*") as caught:
        read(b"data: %s\n\n" % json.dumps({"error": error}).encode())
    assert caught.value.code == "UNAVAILABLE"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"data: {\n\n",
        b"data: \xff\n\n",
        event([{"text": "a"}]),
        event([{"functionCall": {"args": {}}}], finishReason="STOP"),
        event([{"inlineData": {"mimeType": "image/png", "data": ""}}], finishReason="STOP"),
        b'data: {"usageMetadata": {"promptTokenCount": -1}}\n\n',
    ],
    ids=["nothing", "no json", "no utf-8", "no finish reason", "no name", "an image", "negative count"],
)
def test_what_violates_the_api_is_an_error(raw: bytes) -> None:
    with pytest.raises(ApiError, match="invalid answer"):
        read(raw)

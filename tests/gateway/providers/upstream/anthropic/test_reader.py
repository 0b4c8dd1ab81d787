"""Anthropic's answers, whole, streamed and cut anywhere, are the same deltas or an error."""

from __future__ import annotations

import json

import pytest

from gateway.answer import Delta
from gateway.errors import ApiError
from gateway.providers.upstream.anthropic.reader import MessageReader
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.sse import EventReader
from tests.gateway.providers.upstream.anthropic.calls import (
    CONTENT,
    EVENTS,
    EXPECTED,
    MESSAGE,
    block,
    collected,
    event,
    shown,
)


def read(raw: bytes, *, size: int = 0) -> tuple[MessageReader, list[Delta]]:
    """Read a stream in pieces of this size; 0: at once."""
    reader, events = MessageReader("here", Redactor()), EventReader()
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)] if size else [raw]
    for piece in pieces:
        for found in events.feed(piece):
            reader.read(found)
    for found in events.close():
        reader.read(found)
    reader.check_complete()
    return reader, reader.deltas


def counts(reader: MessageReader) -> tuple[int, int, int, int]:
    usage = reader.usage
    return usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens


def test_a_whole_message() -> None:
    reader = MessageReader("here", Redactor())
    reader.read_whole(json.dumps(MESSAGE).encode())
    assert shown(collected(reader.deltas)) == EXPECTED
    assert counts(reader) == (22, 16, 9, 3)


@pytest.mark.parametrize("size", [0, 1, 2, 7, 64])
def test_a_stream(size: int) -> None:
    reader, found = read(EVENTS, size=size)
    assert shown(collected(found)) == EXPECTED
    assert counts(reader) == (22, 16, 9, 3)
    assert [delta.finish_reason for delta in found if delta.finish_reason] == ["tool_calls"]


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
    assert num_whole == 3  # without the last line feeds


def test_redacted_thinking_is_kept() -> None:
    content = {"type": "redacted_thinking", "data": "abc"}
    reader = MessageReader("here", Redactor())
    reader.read_whole(json.dumps({**MESSAGE, "content": [content, *CONTENT[1:]]}).encode())
    assert reader.deltas[0].reasoning_signature == "redacted:abc"
    raw = block(0, content) + EVENTS[EVENTS.index(b"event: message_delta") :]
    assert read(raw)[1][0].reasoning_signature == "redacted:abc"


@pytest.mark.parametrize(
    ("reason", "sequence", "expected"),
    [
        ("end_turn", None, ("stop", "")),
        ("stop_sequence", "END", ("stop", "END")),
        ("pause_turn", None, ("stop", "")),
        ("max_tokens", None, ("length", "")),
        ("model_context_window_exceeded", None, ("length", "")),
        ("refusal", None, ("content_filter", "")),
        ("something_new", None, ("stop", "")),
    ],
)
def test_stop_reasons(reason: str, sequence: str | None, expected: tuple[str, str]) -> None:
    reader = MessageReader("here", Redactor())
    body = {**MESSAGE, "content": CONTENT[1:2], "stop_reason": reason, "stop_sequence": sequence}
    reader.read_whole(json.dumps(body).encode())
    assert (reader.deltas[-1].finish_reason, reader.deltas[-1].stop_string) == expected


def test_an_error_in_a_stream_is_the_upstreams() -> None:
    error = {"type": "overloaded_error", "message": "Overloaded, says canary"}
    reader = MessageReader("here", Redactor("canary"))
    with pytest.raises(ApiError, match=r"Overloaded, says \*\*\*"):
        reader.read(json.dumps({"type": "error", "error": error}).encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"data: {\n\n",
        b"data: \xff\n\n",
        event("content_block_delta", index=5, delta={"type": "input_json_delta", "partial_json": "{}"}),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": -1}),
        block(0, {"type": "text", "text": "a"}) + event("message_stop"),
    ],
    ids=["nothing", "no json", "no utf-8", "arguments of no call", "negative count", "no stop reason"],
)
def test_what_violates_the_api_is_an_error(raw: bytes) -> None:
    with pytest.raises(ApiError, match="invalid answer"):
        read(raw)

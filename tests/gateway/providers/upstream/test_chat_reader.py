"""Readers of content blocks: calls begin before their arguments, are limited, and answers have an end."""

from __future__ import annotations

import pytest

from gateway.answer import Delta, ToolCallDelta
from gateway.errors import ApiError
from gateway.providers.upstream.answer_reader import MAX_TOOL_CALLS
from gateway.providers.upstream.chat_reader import BlockReader
from gateway.providers.upstream.redaction import Redactor


class Reader(BlockReader):
    """Reads "begin INDEX", "arguments INDEX", "finish" and "end"."""

    def read_whole(self, body: bytes) -> None:
        for event in body.splitlines():
            self.read(event)
        self.check_complete()

    def read(self, event: bytes) -> None:
        word, _, index = event.decode().partition(" ")
        if word == "begin":
            self._begin_call(int(index), f"c{index}", "f")
        elif word == "arguments":
            self._add_arguments(int(index), "{}")
        elif word == "finish":
            self._finish = Delta(0, finish_reason="tool_calls")
        else:
            self._has_end = True


def test_calls_are_numbered_among_themselves() -> None:
    reader = Reader("m", Redactor())
    reader.read_whole(b"begin 1\nbegin 4\narguments 4\nfinish\nend")
    first, second, arguments, finish = reader.deltas
    assert first.tool_calls == [ToolCallDelta(0, "", "c1", "f")]
    assert second.tool_calls == [ToolCallDelta(1, "", "c4", "f")]
    assert arguments.tool_calls == [ToolCallDelta(1, "{}")]
    assert finish.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ("arguments 0", "has not begun"),
        ("finish", "before the answer was complete"),
        ("end", "before the answer was complete"),
        ("\n".join(f"begin {index}" for index in range(MAX_TOOL_CALLS + 1)), "more than"),
    ],
)
def test_what_breaks_the_order_is_an_invalid_answer(events: str, what: str) -> None:
    with pytest.raises(ApiError, match=what) as found:
        Reader("m", Redactor()).read_whole(events.encode())
    too_long, code = "upstream_answer_too_long", "upstream_invalid_response"
    assert found.value.code == (too_long if what == "more than" else code)


def test_an_error_in_the_body_is_reported_without_secrets() -> None:
    reader = Reader("m", Redactor.of("sk-secret-key", ""))
    assert "sk-secret" not in reader.reported(b'{"error": {"message": "no sk-secret-key"}}').message
    assert reader.reported(b'{"error": 3}').code == "upstream_invalid_response"

"""Calls are parsed as they were written; other text is not a call."""

from __future__ import annotations

from typing import Any

import pytest

from backend.pico.tasks.tool_calls import call_text, parse_calls


def test_calls_read_back_in_order() -> None:
    calls: list[dict[str, Any]] = [{"name": "f", "arguments": {"x": "é\n<"}}, {"name": "g", "arguments": {}}]
    text = "\n".join(call_text(call["name"], call["arguments"]) for call in calls)
    assert parse_calls(text) == calls
    assert parse_calls(f" {text}\n") == calls


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "<tool_call>\n{]\n</tool_call>",
        f"<tool_call>\n{'[' * 5000}\n</tool_call>",
        f"<tool_call>\n{'1' * 5000}\n</tool_call>",
        f"So: {call_text('f', {})}",
    ],
)
def test_other_text_is_not_a_call(text: str) -> None:
    assert parse_calls(text) is None

"""Extraction of the answer from a generated turn."""

from __future__ import annotations

import pytest

from backend.pico.decoder import answer_in


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        ("42<|im_end|>", False, "42"),
        ("42", False, "42"),
        ("7*6\n</think>\n\n42<|im_end|>\n", True, "42"),
        ("</think>\n\nHello!", True, "Hello!"),
        ("7*6 = 42", True, ""),
        ("7*6<|im_end|></think>\n\n42", True, ""),
        ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', False, None),
    ],
)
def test_answer_in(text: str, thinking: bool, expected: str | None) -> None:
    assert answer_in(text, thinking=thinking) == (text if expected is None else expected)

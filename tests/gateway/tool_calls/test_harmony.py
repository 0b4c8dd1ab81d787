"""Calls in messages to a recipient."""

from __future__ import annotations

import pytest

from gateway.tool_calls.harmony import HARMONY
from tests.gateway.tool_calls.pieces import parse


@pytest.mark.parametrize(
    "header", ["functions.add", "add", "functions.add <|constrain|>json", "functions.add json"]
)
def test_the_recipient_is_the_function(header: str) -> None:
    for end in ("", "<|call|>", "\n<|call|>\n"):
        text = f'<|channel|>commentary to={header}<|message|>{{"a": 1}}{end}'
        assert parse(HARMONY, list(text)) == ("", [("add", '{"a": 1}')])


@pytest.mark.parametrize("body", ["5", "print(1)", '{"a": 01}', "[1]"])
def test_anything_but_an_object_is_text(body: str) -> None:
    text = f"<|channel|>commentary to=functions.add<|message|>{body}<|call|>"
    assert parse(HARMONY, list(text)) == (text, [])

"""Identifiers are quoted in errors, other text is not."""

from __future__ import annotations

import re

import pytest

from backend.identifiers import CALL_ID, CHOICE, FUNCTION_NAME, KEY, quoted


@pytest.mark.parametrize(
    ("kind", "shown", "hidden"),
    [
        (FUNCTION_NAME, ["get_weather", "0-a", "x" * 64], ["get.weather", "x" * 65]),
        (KEY, ["city", "_id", "a.b-c", "x" * 64], ["0", "$ref", "-a", "x" * 65]),
        (CALL_ID, ["call_1", "call:1.2-3", "0" * 64], ["call/1", "0" * 65]),
        (CHOICE, ["high", "json_object", "gpt-4.1", "x" * 16], ["x" * 17]),
    ],
)
def test_only_identifiers_are_quoted(kind: re.Pattern[str], shown: list[str], hidden: list[str]) -> None:
    assert [quoted(text, kind) for text in shown] == [repr(text) for text in shown]
    for text in ["", "two words", "line\n", "é", "'", None, 5, ["a"], *hidden]:
        assert quoted(text, kind, "it") == "it"

"""Texts as terms of a grammar."""

from __future__ import annotations

import re

import pytest

from gateway.providers.engine.grammar_words import Words, json_rule, pattern
from gateway.tool_calls.families import SYNTAXES


def test_special_tokens_are_ids_and_all_else_is_text() -> None:
    words = Words(SYNTAXES["hermes"], {"<tool_call>": 7}.get)
    assert words.terms("<tool_call>\n</tool_call>") == '<[7]> "\\n</tool_call>"'
    assert words.pieces("") == []


def test_a_leading_brace_is_a_term_of_its_own() -> None:
    words = Words(SYNTAXES["hermes"], lambda _: None)
    assert words.pieces('{"name": ') == ['"{"', '"\\"name\\": "']


@pytest.mark.parametrize(
    "text", ["<tool_call>", "[TOOL_CALLS]", "\n</parameter>\n", "<|x|>", "<｜tool▁calls▁begin｜>"]
)
def test_a_pattern_matches_its_text_and_fits_between_slashes(text: str) -> None:
    found = pattern(text)
    assert "\n" not in found and not re.search(r"(?<!\\)/", found)
    assert re.fullmatch(found, text)


def test_json_is_lenient_unless_it_is_exact() -> None:
    assert '"lenient": true' in json_rule({"type": "object"}, is_exact=False)
    assert '"lenient": false' in json_rule({"type": "object"}, is_exact=True)

"""Token bytes are exact, whatever the tokenizer does at the start of a text."""

from __future__ import annotations

import pytest

from backend.errors import CheckpointError
from backend.structured.vocabulary import Vocabulary
from tests.backend.structured.letters import AB, CLOSE, END, NAME, TOKENS, allowed, grammar, ids, letters


def test_tokens_have_exactly_the_given_bytes() -> None:
    assert letters()(b'ab"name"c') == [AB, NAME, ord("c")]
    assert letters()(bytes([0xFF, 0x61])) == [0xFF, 0x61]


def test_a_tokenizer_that_adds_text_is_ignored() -> None:
    def encode(text: str) -> list[int]:
        return ids(" " + text) if text != "x" else [ord("x")]

    found = Vocabulary(TOKENS, [END], [END], encode)
    assert found(b"abc") == [AB, ord("c")] and found(b"x") == [ord("x")]


def test_special_tokens_are_not_used_for_text() -> None:
    found = Vocabulary(TOKENS, [CLOSE, END], [END], lambda text: [CLOSE])
    assert found(b"</think>") == ids("</think>")
    assert found.special_id("</think>") == CLOSE and found.special_id("<think>") is None


def test_no_text_allows_special_tokens_and_ids_without_a_token() -> None:
    found = grammar("(?s:.)*")
    assert allowed(found) >= {ord("a"), AB, END}
    assert not allowed(found) & {CLOSE, len(TOKENS) - 1}


def test_a_model_without_eos() -> None:
    assert Vocabulary(TOKENS, [CLOSE], []).eos_token_id == CLOSE
    assert Vocabulary(TOKENS, [], []).eos_token_id == len(TOKENS) - 1
    with pytest.raises(CheckpointError, match="special token"):
        Vocabulary(TOKENS[:256], [], [])

"""Grammar masks change only the rows that have a grammar."""

from __future__ import annotations

import pytest
import torch

from backend.kernels.sampling.changes import apply_changes
from backend.structured import mask
from backend.structured.grammar import Grammar
from backend.structured.mask import grammar_changes
from tests.backend.structured.letters import AB, END, TOKENS, grammar, ids


def allowed_in(row: torch.Tensor) -> set[int]:
    return set(row.isfinite().nonzero().flatten().tolist())


def test_only_rows_with_a_grammar_change() -> None:
    logits = torch.randn(6, len(TOKENS))
    before = logits.clone()
    apply_changes(
        logits, grammar_changes(logits.shape[1], [(1, grammar("a+"), []), (3, grammar("(b|c)d"), ids("b"))])
    )
    for row in (0, 2, 5):
        assert torch.equal(logits[row], before[row])
    assert allowed_in(logits[1]) == set(ids("a"))
    assert allowed_in(logits[3]) == set(ids("bc")) and allowed_in(logits[4]) == set(ids("d"))
    kept = logits.isfinite()
    assert torch.equal(logits[kept], before[kept])


def test_token_ids_beyond_the_logits_are_ignored() -> None:
    logits = torch.zeros(1, END)
    apply_changes(logits, grammar_changes(logits.shape[1], [(0, grammar("(ab)?"), [])]))
    assert allowed_in(logits[0]) == {*ids("a"), AB}


def test_many_rows_of_a_large_vocabulary_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars: list[tuple[int, Grammar, list[int]]] = [
        (row, grammar(text), []) for row, text in ((0, "a"), (1, "[^a]"), (2, "[a-m]{3}"), (5, "ab"))
    ]
    logits = torch.randn(6, len(TOKENS))
    whole = logits.clone()
    apply_changes(whole, grammar_changes(whole.shape[1], grammars))
    for num_words in (1, 20):  # one row at a time, and two
        monkeypatch.setattr(mask, "_BLOCK_WORDS", num_words)
        found = logits.clone()
        apply_changes(found, grammar_changes(found.shape[1], grammars))
        assert torch.equal(found, whole)
    assert allowed_in(whole[0]) == set(ids("a")) and torch.equal(whole[3:5], logits[3:5])

"""Masks computed in parallel equal those computed one by one, also of finished and failed grammars."""

from __future__ import annotations

import numpy as np
from llguidance import LLExecutor

from backend.structured.parallel import fill_masks
from tests.backend.structured.letters import AMBIGUOUS, TOKENS, bits, grammar, ids

PATTERNS = ("a+b?", "abc", "(b|c)d", "[a-m]{3}", "ab", "x.*", "(ab)?", "[0-9]+", "q")


def test_many_at_once() -> None:
    grammars = [grammar(pattern) for pattern in PATTERNS]
    for token in ids("ab"):
        grammars[4].advance(token)
    grammars[6].error = "too complex"
    assert grammars[4].is_over
    masks = {}
    for threads in (None, LLExecutor(2)):
        found = np.zeros((12, -(-len(TOKENS) // 32)), dtype=np.int32)
        fill_masks([(row + 2, each) for row, each in enumerate(grammars)], found, threads)
        masks[threads is None] = [bits(row) for row in found]
    assert masks[True] == masks[False]
    assert masks[True][2] == {*ids("a"), 256} and not masks[True][0] and not masks[True][11]
    assert len(masks[True][8]) > 250, "a failed grammar allows every token"


def test_a_slow_grammar_fails_and_the_others_do_not() -> None:
    slow = grammar(AMBIGUOUS, kind="lark")
    honest = [grammar("[x-z]*") for _ in range(8)]
    threads = LLExecutor(2)
    for _ in range(2000):
        masks = np.zeros((9, -(-len(TOKENS) // 32)), dtype=np.int32)
        fill_masks(list(enumerate([slow, *honest])), masks, threads)
        assert all(bits(row) >= set(ids("xyz")) for row in masks[1:])
        if slow.error:
            break
        for each in [slow, *honest]:
            each.advance(ord("x"))
    assert "takes too long" in slow.error and not any(each.error for each in honest)
    fill_masks(list(enumerate(honest)), masks, None)  # a busy machine may have marked them slow
    assert not any(each.is_slow for each in honest), "they return to the thread pool"

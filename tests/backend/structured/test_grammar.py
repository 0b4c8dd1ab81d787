"""Masks, the way forward and back, drafts: on a vocabulary of letters."""

from __future__ import annotations

import numpy as np

from backend.structured.automata import build
from backend.structured.automaton_text import automaton_text
from backend.structured.grammar import Grammar
from backend.types import DraftTree, GrammarSpec
from tests.backend.structured.letters import AB, END, TOKENS, allowed, bits, grammar, ids, letters

WORDS = -(-len(TOKENS) // 32)


def test_the_mask_holds_what_may_follow_and_the_end_only_of_a_complete_output() -> None:
    found = grammar("a+b?")
    assert allowed(found) == {*ids("a"), AB}
    found.advance(ord("a"))
    assert allowed(found) == {*ids("ab"), AB, END} and found.is_accepting and not found.is_over
    found.advance(ord("b"))
    assert found.is_over and allowed(found) == {END}


def test_a_token_of_several_bytes_is_one_step() -> None:
    found = grammar("abc")
    found.advance(AB)
    assert allowed(found) == set(ids("c"))


def test_rollback_leads_to_the_same_masks() -> None:
    found = grammar("a(b|c)d")
    masks = [allowed(found)]
    for token in ids("ab"):
        found.advance(token)
        masks.append(allowed(found))
    found.advance(ord("d"))
    assert found.is_over
    for count, mask in ((1, masks[2]), (2, masks[0])):
        found.rollback(count)
        assert not found.is_over and allowed(found) == mask
    for token in ids("acd"):
        found.advance(token)
    assert found.is_over


def test_masks_of_drafts_are_those_of_stepping_and_leave_the_state() -> None:
    found = grammar("a(b|c)d?")
    rows = np.full((4, WORDS), -1, dtype=np.int32)
    found.fill_masks(rows, ids("acd"))
    stepped = []
    for token in [*ids("acd"), END]:
        stepped.append(allowed(found))
        found.advance(token)
    assert [bits(row) for row in rows] == stepped


def test_rows_behind_a_forbidden_draft_stay_free() -> None:
    found = grammar("a(b|c)d")
    rows = np.full((4, WORDS), -1, dtype=np.int32)
    found.fill_masks(rows, ids("axd"))
    assert bits(rows[0]) == {*ids("a"), AB} and bits(rows[1]) == set(ids("bc"))
    assert (rows[2:] == -1).all() and not found.error
    assert allowed(found) == {*ids("a"), AB}


def test_masks_of_a_tree_are_those_of_each_path_and_leave_the_state() -> None:
    found = grammar("a(b|c)d?")
    # a → b, x, c → d; x is not allowed, so d behind it is not reached
    tree = DraftTree(tuple(ids("abxcdd")), (-1, 0, 0, 0, 2, 3))
    rows = np.full((7, WORDS), -1, dtype=np.int32)
    found.fill_masks(rows, tree)
    assert allowed(found) == {*ids("a"), AB}, "the state of before"
    for node, path in ((-1, ""), (0, "a"), (1, "ab"), (3, "ac"), (5, "acd")):
        fresh = grammar("a(b|c)d?")
        for token in ids(path):
            fresh.advance(token)
        assert bits(rows[node + 1]) == allowed(fresh)
    assert (rows[[3, 5]] == -1).all() and not found.error
    assert found.allowed_nodes(tree) == [0, 1, 3, 5]
    for token in ids("abd"):
        found.advance(token)
    assert found.is_over and found.allowed_nodes(tree) == []


def test_drafts_are_filtered_up_to_the_first_forbidden_one() -> None:
    found = grammar("a(b|c)d")
    assert [found.filter_drafts(ids(draft)) for draft in ("abd", "abx", "x", "")] == [3, 2, 0, 0]
    for token in ids("abd"):
        found.advance(token)
    assert found.filter_drafts(ids("a")) == 0


def test_what_must_come_is_known_in_advance() -> None:
    found = grammar("(x|y)name: z")
    assert found.forced_tokens() == []
    found.advance(ord("x"))
    assert found.forced_tokens() == ids("name: z")
    for token in ids("name: z"):
        found.advance(token)
    assert found.forced_tokens() == []


def test_after_an_error_everything_is_allowed_and_nothing_is_over() -> None:
    found = grammar("abc")
    found.advance(ord("x"))
    assert "too complex" in found.error and not found.is_over and not found.is_accepting
    row = np.zeros(WORDS, dtype=np.int32)
    found.fill_mask(row)
    assert (row == -1).all()
    found.advance(ord("a"))
    found.rollback(1)
    assert found.filter_drafts(ids("a")) == 0 and found.forced_tokens() == []


def test_sequences_of_one_grammar_are_independent() -> None:
    vocabulary = letters()
    start = build(automaton_text(GrammarSpec(kind="regex", text="ab|ac"), vocabulary), vocabulary)
    one, other = Grammar(start), Grammar(start)
    one.advance(ord("a"))
    assert allowed(one) == set(ids("bc")) and allowed(other) == {*ids("a"), AB}

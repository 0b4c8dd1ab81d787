"""Masks, advance, rollback and drafts on a vocabulary of letters."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from llguidance import LLExecutor, LLParserLimits

from backend.structured import compiled_grammar, cpu_budget
from backend.structured.compiled_grammar import CompiledGrammar, build
from backend.structured.grammar import Grammar
from backend.structured.llguidance_source import llguidance_source
from backend.structured.parallel import fill_masks
from backend.types import DraftTree, GrammarSpec
from tests.backend.structured.letters import AB, AMBIGUOUS, END, TOKENS, allowed, bits, grammar, ids, letters
from tests.backend.structured.schemas import corpus

WORDS = -(-len(TOKENS) // 32)


def test_the_mask_allows_eos_only_after_a_complete_output() -> None:
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


def test_rows_after_a_forbidden_draft_stay_unmasked() -> None:
    found = grammar("a(b|c)d")
    rows = np.full((4, WORDS), -1, dtype=np.int32)
    found.fill_masks(rows, ids("axd"))
    assert bits(rows[0]) == {*ids("a"), AB} and bits(rows[1]) == set(ids("bc"))
    assert (rows[2:] == -1).all() and not found.error
    assert allowed(found) == {*ids("a"), AB}


def test_masks_of_a_tree_are_those_of_each_path_and_leave_the_state() -> None:
    found = grammar("a(b|c)d?")
    # a → b, x, c → d; x is forbidden, so the d after it is not reached
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


def test_forced_tokens() -> None:
    found = grammar("(x|y)name: z")
    assert found.forced_tokens() == []
    found.advance(ord("x"))
    assert found.forced_tokens() == ids("name: z")
    for token in ids("name: z"):
        found.advance(token)
    assert found.forced_tokens() == []


def test_after_an_error_every_token_is_allowed() -> None:
    found = grammar("abc")
    found.advance(ord("x"))
    assert "too complex" in found.error and not found.is_over and not found.is_accepting
    row = np.zeros(WORDS, dtype=np.int32)
    found.fill_mask(row)
    assert (row == -1).all()
    found.advance(ord("a"))
    found.rollback(1)
    assert found.filter_drafts(ids("a")) == 0 and found.forced_tokens() == []


def test_a_dead_end_has_its_own_message() -> None:
    found = grammar('start: "a" B\nB: /x/ & /y/', kind="lark")
    found.advance(ord("a"))
    allowed(found)
    assert "cannot be completed" in found.error and "NoExtension" not in found.error
    with pytest.raises(ValueError, match="^nothing satisfies it$"):
        grammar('{"$ref": "#"}', kind="json_schema")


def test_a_refusal_shows_no_other_part_of_the_grammar() -> None:
    schema = '%json {"type": "string", "pattern": "(?=x)", "x-guidance": {"lenient": false}}'
    with pytest.raises(ValueError, match="look-around") as refused:
        grammar(f'start: secret | call\nsecret: "secret"\ncall: {schema}', kind="lark")
    assert "secret" not in str(refused.value)


def test_sequences_of_one_grammar_are_independent() -> None:
    vocabulary = letters()
    matcher = build(llguidance_source(GrammarSpec(kind="regex", text="ab|ac"), vocabulary), vocabulary)
    start = CompiledGrammar(matcher)
    one, other = Grammar(start), Grammar(start)
    one.advance(ord("a"))
    assert allowed(one) == set(ids("bc")) and allowed(other) == {*ids("a"), AB}


GROWING = "[ab]*a[ab]{10}c|x+"
"""Almost every draft of a and b adds states to the automaton."""


@pytest.fixture
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for a few drafts."""
    monkeypatch.setattr(
        compiled_grammar, "_LIMITS", LLParserLimits(max_lexer_states=80, verbose_errors=False)
    )


def drafts_of_letters(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [ids("".join(rng.choices("ab", k=12))) for _ in range(count)]


def masks_after(kept: list[int], draft: list[int]) -> list[set[int]]:
    """The masks after `kept` and after each draft token, computed without drafts."""
    plain, found = grammar(GROWING), []
    for token in [*kept, *draft]:
        found.append(allowed(plain))
        plain.advance(token)
    return [*found[len(kept) :], allowed(plain)]


@pytest.mark.usefixtures("few_states")
def test_rejected_drafts_do_not_exhaust_a_grammar() -> None:
    found, kept = grammar(GROWING), ids("ab")
    for token in kept:
        found.advance(token)
    for draft in drafts_of_letters(30):
        rows = np.full((13, WORDS), -1, dtype=np.int32)
        found.fill_masks(rows, draft)
        assert not found.error and found.filter_drafts(draft) == 12
    assert [bits(row) for row in rows] == masks_after(kept, draft)
    found.advance(ord("a"))
    found.rollback(2)
    assert allowed(found) == masks_after(kept[:1], [])[0]


@pytest.mark.usefixtures("few_states")
def test_drafts_of_one_sequence_do_not_fail_another() -> None:
    one = grammar(GROWING)
    other = Grammar(one._compiled)
    for draft in drafts_of_letters(20):
        one.fill_masks(np.full((13, WORDS), -1, dtype=np.int32), draft)
    rows = np.full((13, WORDS), -1, dtype=np.int32)
    other.fill_masks(rows, draft)
    assert not other.error and [bits(row) for row in rows] == masks_after([], draft)


@pytest.mark.usefixtures("few_states")
def test_rejected_draft_trees_do_not_exhaust_a_grammar() -> None:
    found = grammar(GROWING)
    drafts = drafts_of_letters(30)
    for one, other in zip(drafts[::2], drafts[1::2], strict=True):
        tree = DraftTree((*one, *other), (*range(-1, 11), -1, *range(12, 23)))
        rows = np.full((25, WORDS), -1, dtype=np.int32)
        assert found.allowed_nodes(tree) == list(range(24))
        found.fill_masks(rows, tree)
        assert not found.error
    masks = [bits(row) for row in rows]
    assert masks[:13] == masks_after([], one) and masks[13:] == masks_after([], other)[1:]


@pytest.mark.parametrize("threads", [None, LLExecutor(2)])
def test_a_failed_matcher_is_rebuilt(threads: LLExecutor | None) -> None:
    grammars = [grammar("ab|ac") for _ in range(9)]
    for each in grammars:
        each.advance(ord("a"))
    grammars[4].matcher.consume_token(ord("x"))
    assert grammars[4].matcher.is_error()
    masks = np.zeros((9, WORDS), dtype=np.int32)
    fill_masks(list(enumerate(grammars)), masks, threads)
    assert all(bits(row) == set(ids("bc")) for row in masks) and not grammars[4].error


def test_an_ever_slower_grammar_ends_its_request() -> None:
    found = grammar(AMBIGUOUS, kind="lark")
    for _ in range(2000):
        if found.error:
            break
        mask = allowed(found)
        assert found.error or mask <= {*ids("xy"), END}
        found.advance(ord("x"))
    assert "takes too long" in found.error and "simplify" in found.error
    assert len(allowed(found)) > 250 and found.forced_tokens() == []


def clocked(monkeypatch: pytest.MonkeyPatch, *times_s: float) -> None:
    """Replace the CPU clock: it advances by the next of `times_s` at each reading, then stops."""
    steps, now_s = iter(times_s), [0.0]

    def thread_time() -> float:
        now_s[0] += next(steps, 0.0)
        return now_s[0]

    monkeypatch.setattr(cpu_budget, "thread_time", thread_time)


def test_the_cpu_budget_refills_up_to_its_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    found = grammar("[ab]*")
    for _ in range(200):
        found.advance(ord("a"))
    clocked(monkeypatch, 0.0, 0.045)
    allowed(found)
    assert not found.error and found.is_slow
    for _ in range(4):
        found.advance(ord("a"))
    clocked(monkeypatch, 0.0, 0.015)
    allowed(found)
    assert not found.error
    clocked(monkeypatch, 0.0, 0.015)
    allowed(found)
    assert "takes too long" in found.error


def test_slow_drafts_are_refused_for_a_while_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = grammar("[ab]*c")
    tree = DraftTree(tuple(ids("ab")), (-1, -1))
    clocked(monkeypatch, 0.0, 0.06)
    assert found.filter_drafts(ids("ab")) == 2
    assert found.filter_drafts(ids("ab")) == 0 and found.allowed_nodes(tree) == []
    rows = np.full((3, WORDS), -1, dtype=np.int32)
    found.fill_masks(rows, ids("ab"))
    assert [bits(row) for row in rows] == [{*ids("abc"), AB}] * 3, "drafts already made are still masked"
    for _ in range(5):
        found.advance(ord("a"))
    assert found.filter_drafts(ids("ab")) == 2 and found.allowed_nodes(tree) == [0, 1] and not found.error


def test_replay_on_a_rebuilt_matcher_has_a_cpu_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = grammar("[ab]*")
    for _ in range(100):
        found.advance(ord("a"))
    found.matcher.consume_token(ord("x"))
    clocked(monkeypatch, 0.0, 0.0, *[0.0, 0.015] * 4)
    allowed(found)
    assert "takes too long" in found.error


def test_legitimate_schemas_use_a_fraction_of_their_cpu_budget() -> None:
    for seed, schema in enumerate(corpus(60)):
        rng = random.Random(seed)
        found, least_s = grammar(json.dumps(schema), kind="json_schema"), cpu_budget.MAX_S
        for _ in range(60):
            choices = sorted(allowed(found))
            least_s = min(least_s, found._token_budget.left_s)
            found.advance(rng.choice(choices))
            if found.is_over:
                break
        assert least_s > cpu_budget.MAX_S / 2 and not found.error

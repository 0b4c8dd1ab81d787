from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from backend.kernels.sampling.changes import apply_changes
from backend.sampling.logits import OriginalRows, RowEdits, TokenCounts, ban_changes, edit_changes
from tests.backend.kernels.waits import Waits

VOCAB = 30
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=200)


@settings(max_examples=50, deadline=None)
@given(prompt=tokens, output=tokens, penalty=st.sampled_from([0.5, 1.0, 1.3]))
def test_repetition_penalty_is_that_of_transformers(
    prompt: list[int], output: list[int], penalty: float
) -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(len(prompt)))
    want = logits.clone()
    if prompt + output:
        want[1:] = RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([prompt + output]), logits[1:].clone()
        )
    apply_changes(
        logits, edit_changes([(1, RowEdits.build(TokenCounts(prompt, output), (penalty, 0.0, 0.0), {}))])
    )
    torch.testing.assert_close(logits, want)


@settings(max_examples=50, deadline=None)
@given(output=tokens, presence=st.sampled_from([-1.0, 0.0, 0.7]), frequency=st.sampled_from([-0.5, 0.0, 0.2]))
def test_presence_and_frequency_count_the_output(
    output: list[int], presence: float, frequency: float
) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(7))
    want = logits.clone()
    for token, count in Counter(output).items():
        want[0, token] -= frequency * count + presence
    counts = TokenCounts((), output[:5])
    for token in output[5:]:
        counts.add(token)
    apply_changes(logits, edit_changes([(0, RowEdits.build(counts, (1.0, presence, frequency), {}))]))
    torch.testing.assert_close(logits, want)


def test_prompt_tokens_do_not_count_for_presence() -> None:
    logits = torch.ones(1, VOCAB)
    apply_changes(logits, edit_changes([(0, RowEdits.build(TokenCounts([3, 4], [4]), (2.0, 1.0, 0.0), {}))]))
    assert logits[0, 3] == 0.5 and logits[0, 4] == -0.5 and logits[0, 5] == 1.0


def test_bias_adds_in_its_row_only_and_after_penalties() -> None:
    logits = torch.ones(3, VOCAB)
    edits = [
        (0, RowEdits.build(None, (1.0, 0.0, 0.0), {2: -100.0, 5: 3.0})),
        (2, RowEdits.build(TokenCounts([2], []), (2.0, 0.0, 0.0), {2: 1.0})),
    ]
    apply_changes(logits, edit_changes(edits))
    assert logits[0, 2] == -99 and logits[0, 5] == 4 and logits[2, 2] == 1.5
    assert (logits[1] == 1).all() and logits[0].sum() == VOCAB - 100 + 3


def test_banned_tokens_cannot_win() -> None:
    logits = torch.ones(2, VOCAB)
    apply_changes(logits, ban_changes([(1, np.array([3, 9]))]))
    assert torch.isinf(logits[1, [3, 9]]).all() and torch.isfinite(logits).sum() == 2 * VOCAB - 2


def test_a_ban_of_every_allowed_token_is_dropped() -> None:
    logits = torch.full((4, VOCAB), float("-inf"))
    logits[0, [3, 9]] = logits[1, 3] = logits[3, 3] = 1.0
    logits[2, [3, 9]] = 1.0
    want = logits.clone()
    want[0, 3] = float("-inf")  # rows 1 and 2 would keep nothing, row 3 is not in the list
    with Waits() as waits:
        banned = [(0, np.array([3, 4])), (2, np.array([3, 9])), (1, np.array([3, 4]))]
        apply_changes(logits, ban_changes(banned, is_feasible_only=True))
    assert torch.equal(logits, want)
    assert not waits.reads


def test_original_rows_are_those_before_later_changes() -> None:
    logits = torch.randn(3, VOCAB)
    before, original = logits.clone(), OriginalRows([2, 0])
    apply_changes(logits, original.changes() + ban_changes([(2, np.arange(VOCAB))]))
    assert torch.equal(original.logits, before[[2, 0]]) and original.rows.tolist() == [2, 0]
    assert logits[2].isinf().all() and torch.equal(logits[:2], before[:2])
    assert OriginalRows([]).changes() == []

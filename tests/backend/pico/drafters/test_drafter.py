"""Shifts, the starts of rounds, and the divergence."""

from __future__ import annotations

import torch

from backend.pico.drafters.drafter import divergence, round_places, shift_left, shift_right


def test_shifts_fill_with_zeros() -> None:
    x = torch.tensor([[1, 2, 3, 4]])
    assert shift_left(x, 1).tolist() == [[2, 3, 4, 0]]
    assert shift_right(x, 2).tolist() == [[0, 0, 1, 2]]
    assert shift_left(x, 0).tolist() == x.tolist()
    assert shift_left(x, 9).tolist() == shift_right(x, 9).tolist() == [[0, 0, 0, 0]]


def test_rounds_stay_within_one_answer() -> None:
    predicts = torch.tensor([[0, 1, 1, 1, 0, 1, 1, 0]]).bool()
    assert round_places(predicts, 1).nonzero()[:, 1].tolist() == [1, 2, 5]
    assert round_places(predicts, 2).nonzero()[:, 1].tolist() == [1]


def test_divergence_is_kullback_leibler() -> None:
    target, other = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    expected = 0.5 * torch.tensor(2.0).log() + 0.5 * torch.tensor(2 / 3).log()
    torch.testing.assert_close(divergence(other, target), expected)
    assert divergence(target, target).item() == 0
    assert divergence(target[:0], target[:0]).item() == 0

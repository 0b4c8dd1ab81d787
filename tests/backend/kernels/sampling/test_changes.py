from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from backend.kernels.sampling import changes
from backend.kernels.sampling.changes import Change, apply_changes
from backend.kernels.upload import upload


def _put(logits: Tensor, rows: Tensor, ids: Tensor, values: Tensor) -> None:
    logits[rows, ids] = values


def _double(logits: Tensor, words: Tensor) -> None:
    assert words.shape == (2, 3) and words.dtype is torch.int32
    logits *= 2


@pytest.mark.parametrize("is_on_gpu", [False, True])
def test_changes_are_applied_in_order(*, is_on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "uses_triton", lambda logits: is_on_gpu)
    copies: list[set[int]] = []

    def counted(arrays: list[np.ndarray], device: torch.device) -> list[Tensor]:
        copies.append({array.itemsize for array in arrays})
        return upload(arrays, device)

    monkeypatch.setattr(changes, "upload", counted)
    rows, ids, values = np.array([0, 1]), np.array([2, 0]), np.array([0.5, -np.inf], np.float32)
    words = np.zeros((2, 3), np.int32)
    logits = torch.ones(2, 3)
    own = [
        Change(_put, [rows, ids, values]),
        Change(_double, [words]),
        Change(_put, [rows, np.array([0, 2]), values]),
    ]
    apply_changes(logits, own)
    assert logits.tolist() == [[0.5, 2.0, 1.0], [-np.inf, 2.0, -np.inf]]
    apply_changes(logits, [])
    assert copies == [{4} if is_on_gpu else {4, 8}], "one copy, of words"

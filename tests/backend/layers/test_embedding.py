"""Rows of the table: scaled as the table's dtype rounds, or normalised."""

from __future__ import annotations

import torch

from backend.layers.embedding import Embedding, NormedEmbedding

TABLE, IDS = torch.randn(5, 16), torch.tensor([3, 0, 3])


def test_scale_is_rounded() -> None:
    rows = Embedding(TABLE.bfloat16(), torch.float32, 55.4256)(IDS)
    assert torch.equal(rows, TABLE.bfloat16()[IDS].float() * 55.5)


def test_norm_of_each_row() -> None:
    rows = NormedEmbedding(TABLE, torch.float32, 1e-3)(IDS)
    found = TABLE[IDS]
    torch.testing.assert_close(rows, found / (found.square().mean(dim=1, keepdim=True) + 1e-3).sqrt())

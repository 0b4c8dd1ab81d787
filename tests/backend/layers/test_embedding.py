"""Rows of the table: scaled, by a number that some families round, or normalised."""

from __future__ import annotations

import torch

from backend.layers.embedding import Embedding, NormedEmbedding, rounded

TABLE, IDS = torch.randn(5, 16), torch.tensor([3, 0, 3])


def test_the_scale_of_some_families_is_rounded() -> None:
    table, scale = TABLE.bfloat16(), 55.4256
    assert rounded(scale, table.dtype) == 55.5 and rounded(0.5, table.dtype) == 0.5
    assert torch.equal(Embedding(table, torch.float32, scale)(IDS), table[IDS].float() * scale)


def test_norm_of_each_row() -> None:
    rows = NormedEmbedding(TABLE, torch.float32, 1e-3)(IDS)
    found = TABLE[IDS]
    torch.testing.assert_close(rows, found / (found.square().mean(dim=1, keepdim=True) + 1e-3).sqrt())

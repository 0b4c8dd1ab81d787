"""Rows of the table: scaled, by a number that some families round, or normalised."""

from __future__ import annotations

import torch

from backend.config import Scalars
from backend.layers.embedding import Embedding, NormedEmbedding, embedding_of, rounded

TABLE, IDS = torch.randn(5, 16), torch.tensor([3, 0, 3])


def test_the_scale_of_some_families_is_rounded() -> None:
    table, scale = TABLE.bfloat16(), 55.4256
    assert rounded(scale, table.dtype) == 55.5 and rounded(0.5, table.dtype) == 0.5
    assert torch.equal(Embedding(table, torch.float32, scale)(IDS), table[IDS].float() * scale)


def test_the_embedding_of_a_family() -> None:
    table = TABLE.bfloat16()
    assert embedding_of(table, table.dtype, torch.float32, Scalars(embedding=55.4256), 1e-3).scale == 55.4256
    rounds = Scalars(embedding=55.4256, rounds_embedding=True)
    assert embedding_of(table, table.dtype, torch.float32, rounds, 1e-3).scale == 55.5
    normed = embedding_of(table, table.dtype, torch.float32, Scalars(embedding_norm=True), 1e-3)
    assert isinstance(normed, NormedEmbedding) and normed.eps == 1e-3


def test_norm_of_each_row() -> None:
    rows = NormedEmbedding(TABLE, torch.float32, 1e-3)(IDS)
    found = TABLE[IDS]
    torch.testing.assert_close(rows, found / (found.square().mean(dim=1, keepdim=True) + 1e-3).sqrt())

"""Sizes of graphs."""

from __future__ import annotations

from backend.kernels.graph_keys import padded_context, padded_rows


def test_padded_rows() -> None:
    assert [padded_rows(n) for n in (1, 2, 3, 5, 8, 9, 16, 17)] == [1, 2, 4, 8, 8, 16, 16, 24]


def test_padded_context() -> None:
    assert [padded_context(n, 10_000) for n in (1, 2048, 2049, 9000)] == [2048, 2048, 8192, 10_000]

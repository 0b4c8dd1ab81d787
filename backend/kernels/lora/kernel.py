"""LoRA in Triton: shrink (low = x · downᵀ) and expand (y += low · up) over rows sorted by slot.

As Punica's SGMV (arXiv:2310.18547). A program takes up to TILE_ROWS rows of one slot (`_shrink`, `_expand`).
Where no two rows share a slot, as in decoding with one sequence per adapter, each row is a vector times its
own matrices (`_shrink_row`, `_expand_row`), without the padding that tl.dot needs. Sums are float32. The four
share one layout: T rows of the step, of which n have an adapter; S slots; R ranks of all stacked parts
together, r of one part.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.lora.rows import TILE_ROWS, AdapterRows
from backend.kernels.lora.weights import SlotWeights

_BLOCK_K = 64
_BLOCK_RANKS = 16
_BLOCK_COLUMNS = 128


def add_adapters(y: Tensor, x: Tensor, weights: SlotWeights, rows: AdapterRows) -> None:
    """y[t] += up[slot[t]]ᵀ (down[slot[t]] x[t]), in place: one shrink, and one expand per stacked part."""
    tiles = rows.tiles
    assert weights.down.is_contiguous()
    _, ranks, features = weights.down.shape
    low = torch.empty(len(tiles.rows), ranks, dtype=torch.float32, device=x.device)
    shrink, expand = (_shrink_row, _expand_row) if tiles.one_row_each else (_shrink, _expand)
    pieces = len(tiles.cuts)
    shrink[pieces, triton.cdiv(ranks, _BLOCK_RANKS)](
        x,
        weights.down,
        low,
        tiles.rows,
        tiles.cuts,
        x.stride(0),
        ranks,
        features,
        BLOCK_ROWS=TILE_ROWS,
        BLOCK_N=_BLOCK_RANKS,
        BLOCK_K=_BLOCK_K,
    )
    for part in weights.parts:
        own_ranks, columns = part.up.shape[1:]
        expand[pieces, triton.cdiv(columns, _BLOCK_COLUMNS)](
            y,
            part.up,
            low,
            tiles.rows,
            tiles.cuts,
            y.stride(0),
            part.up.stride(1),
            part.columns.start,
            columns,
            ranks,
            part.ranks.start,
            own_ranks,
            BLOCK_ROWS=TILE_ROWS,
            BLOCK_N=_BLOCK_COLUMNS,
            BLOCK_K=_BLOCK_RANKS,
        )


@triton.jit
def _shrink(
    x,
    down,
    low,
    rows,
    cuts,
    x_stride,
    ranks,
    features,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """low[i] = down[slot] @ x[rows[i]] for the rows of one piece: [rows of the piece, BLOCK_N ranks].

    Grid (P pieces, R / BLOCK_N). x [T, K] any float, rows `x_stride` elements apart; down [S, R, K]
    contiguous; low [n, R] float32, written; rows [n] int64, indices into x, sorted by slot; cuts [P, 3]
    int64: slot, begin and end (at most BLOCK_ROWS apart) of each piece in `rows`; ranks: R; features: K.
    BLOCK_K features at a time. Reads the slot's down once per piece.
    """
    piece = tl.program_id(0)
    slot = tl.load(cuts + piece * 3)
    places = tl.load(cuts + piece * 3 + 1) + tl.arange(0, BLOCK_ROWS)
    is_row = places < tl.load(cuts + piece * 3 + 2)
    row = tl.load(rows + places, mask=is_row, other=0)
    rank = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_ROWS, BLOCK_N), dtype=tl.float32)
    for begin in range(0, features, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        x_mask = is_row[:, None] & (k[None, :] < features)
        xs = tl.load(x + row[:, None] * x_stride + k[None, :], mask=x_mask, other=0.0)
        d_mask = (rank[None, :] < ranks) & (k[:, None] < features)
        ds = tl.load(down + (slot * ranks + rank[None, :]) * features + k[:, None], mask=d_mask, other=0.0)
        total += tl.dot(xs, ds, input_precision="ieee")
    mask = is_row[:, None] & (rank[None, :] < ranks)
    tl.store(low + places[:, None] * ranks + rank[None, :], total, mask=mask)


@triton.jit
def _expand(
    y,
    up,
    low,
    rows,
    cuts,
    y_stride,
    up_stride,
    first_column,
    columns,
    ranks,
    first_rank,
    own_ranks,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y[rows[i], part] += low[i, part] @ up[slot] for the rows of one piece: [its rows, BLOCK_N columns].

    Grid (P pieces, N' / BLOCK_N) for one part with N' columns and r ranks. y [T, N] any float, rows
    `y_stride` elements apart, updated; up [S, r, N'], ranks `up_stride` elements apart; low [n, R] float32;
    rows, cuts: as in _shrink; first_column: where the part's columns begin in y; columns: N'; ranks: R;
    first_rank: where the part's ranks begin in low; own_ranks: r. BLOCK_K ranks at a time.
    """
    piece = tl.program_id(0)
    slot = tl.load(cuts + piece * 3)
    places = tl.load(cuts + piece * 3 + 1) + tl.arange(0, BLOCK_ROWS)
    is_row = places < tl.load(cuts + piece * 3 + 2)
    row = tl.load(rows + places, mask=is_row, other=0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_ROWS, BLOCK_N), dtype=tl.float32)
    for begin in range(0, own_ranks, BLOCK_K):
        rank = begin + tl.arange(0, BLOCK_K)
        l_mask = is_row[:, None] & (rank[None, :] < own_ranks)
        ls = tl.load(low + places[:, None] * ranks + first_rank + rank[None, :], mask=l_mask, other=0.0)
        u_mask = (rank[:, None] < own_ranks) & (column[None, :] < columns)
        us = tl.load(
            up + (slot * own_ranks + rank[:, None]) * up_stride + column[None, :], mask=u_mask, other=0.0
        )
        total += tl.dot(ls, us.to(tl.float32), input_precision="ieee")
    target = y + row[:, None] * y_stride + first_column + column[None, :]
    mask = is_row[:, None] & (column[None, :] < columns)
    before = tl.load(target, mask=mask, other=0.0)
    tl.store(target, (before.to(tl.float32) + total).to(before.dtype), mask=mask)


@triton.jit
def _shrink_row(
    x,
    down,
    low,
    rows,
    cuts,
    x_stride,
    ranks,
    features,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """low[i] = down[slot] @ x[rows[i]] where each piece is one row: [BLOCK_N ranks].

    Grid (n rows, R / BLOCK_N). Arguments as in _shrink, with P = n; BLOCK_ROWS is not used.
    """
    piece = tl.program_id(0)
    slot = tl.load(cuts + piece * 3)
    row = tl.load(rows + piece)
    rank = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for begin in range(0, features, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        xs = tl.load(x + row * x_stride + k, mask=k < features, other=0.0).to(tl.float32)
        mask = (rank[:, None] < ranks) & (k[None, :] < features)
        ds = tl.load(down + (slot * ranks + rank[:, None]) * features + k[None, :], mask=mask, other=0.0)
        total += tl.sum(xs[None, :] * ds.to(tl.float32), axis=1)
    tl.store(low + piece * ranks + rank, total, mask=rank < ranks)


@triton.jit
def _expand_row(
    y,
    up,
    low,
    rows,
    cuts,
    y_stride,
    up_stride,
    first_column,
    columns,
    ranks,
    first_rank,
    own_ranks,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y[rows[i], part] += low[i, part] @ up[slot] where each piece is one row: [BLOCK_N columns].

    Grid (n rows, N' / BLOCK_N). Arguments as in _expand, with P = n; BLOCK_ROWS is not used.
    """
    piece = tl.program_id(0)
    slot = tl.load(cuts + piece * 3)
    row = tl.load(rows + piece)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for begin in range(0, own_ranks, BLOCK_K):
        rank = begin + tl.arange(0, BLOCK_K)
        ls = tl.load(low + piece * ranks + first_rank + rank, mask=rank < own_ranks, other=0.0)
        mask = (rank[:, None] < own_ranks) & (column[None, :] < columns)
        us = tl.load(
            up + (slot * own_ranks + rank[:, None]) * up_stride + column[None, :], mask=mask, other=0.0
        )
        total += tl.sum(ls[:, None] * us.to(tl.float32), axis=0)
    target = y + row * y_stride + first_column + column
    before = tl.load(target, mask=column < columns, other=0.0)
    tl.store(target, (before.to(tl.float32) + total).to(before.dtype), mask=column < columns)

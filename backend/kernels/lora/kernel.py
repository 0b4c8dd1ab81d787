"""LoRA in Triton: shrink (low = x · downᵀ) and expand (y += low · up), each in one launch for all parts.

A program takes a block of rows and the active slots g, g + G, …: it masks the rows that have another slot,
and leaves out slots that no row of its block has. So rows need no sorting, and a device may compute slots.
The features are cut into splits by their number alone, and a row's splits are added in their order, whether
one program takes all of them or each takes one. Blocks depend on the layer alone. So a row's sums depend
neither on the other rows nor on its place among them. They may differ between kinds of GPUs, and when the
layer's room for ranks grows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks
from backend.kernels.lora.rows import DeviceSlots
from backend.kernels.lora.weights import SlotWeights

_MOST_SPLITS, _SPLIT_FEATURES, _STEP_FEATURES = 8, 512, 64  # a split is a multiple of the last
_MANY_ROWS = 512
"""From here on rows alone fill a GPU: a program takes all splits, and `low` has one."""

_OF_STEP = ("slots", "active", "num_rows", "num_active", "splits_each")  # no machine code for their values
_FEW_RANKS = 16


def add_adapters(y: Tensor, x: Tensor, weights: SlotWeights, rows: DeviceSlots) -> None:
    """y[t] += up[slot[t]]ᵀ (down[slot[t]] x[t]), in place, where a row's slot is an active one."""
    (num_rows, features), (_, ranks, _) = x.shape, weights.down.shape
    num_active = len(rows.active)
    if not num_rows or not num_active:
        return
    assert x.stride(1) == y.stride(1) == 1 and weights.down.is_contiguous() and weights.up.is_contiguous()
    shrink = blocks("lora", "shrink" if ranks > _FEW_RANKS else "shrink to few", x.dtype).options()
    expand = blocks("lora", "expand", x.dtype).options()
    num_splits = min(_MOST_SPLITS, triton.cdiv(features, _SPLIT_FEATURES))
    splits_each = num_splits if num_rows >= _MANY_ROWS else 1
    num_lows = num_splits // splits_each
    low = torch.empty(num_lows, num_rows, ranks, dtype=torch.float32, device=x.device)
    split_features = triton.cdiv(features, num_splits * _STEP_FEATURES) * _STEP_FEATURES
    of_rows = rows.slots, rows.active, num_rows, num_active
    rank_blocks = triton.cdiv(ranks, shrink["BLOCK_RANKS"])
    _shrink[*_grid(num_rows, num_active, shrink["BLOCK_ROWS"]), num_lows * rank_blocks](
        *(low, x, weights.down, *of_rows),
        *(x.stride(0), ranks, features, split_features, splits_each),
        **shrink,
    )
    num_columns = weights.out_features
    tiles = triton.cdiv(num_columns, expand["BLOCK_WIDTH"])
    _expand[*_grid(num_rows, num_active, expand["BLOCK_ROWS"]), tiles](
        *(y, low, weights.up, *of_rows),
        *(y.stride(0), weights.rank, ranks, num_columns),
        ENDS=tuple(part.columns.stop for part in weights.parts),
        NUM_LOWS=num_lows,
        **expand,
    )


def _grid(num_rows: int, num_active: int, block: int) -> tuple[int, int]:
    """Blocks of rows, and programs for each: as many as a block has slots where rows are sorted by slot."""
    num_blocks = triton.cdiv(num_rows, block)
    return num_blocks, min(block, 1 + triton.cdiv(num_active - 1, num_blocks))


@triton.jit(do_not_specialize=_OF_STEP, do_not_specialize_on_alignment=_OF_STEP)
def _shrink(
    low,
    x,
    down,
    slots,
    active,
    num_rows,
    num_active,
    x_stride,
    ranks,
    features,
    split_features,
    splits_each,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_RANKS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """low[i, t] = down[slots[t]] x[t] over `splits_each` splits from i on: [BLOCK_ROWS, BLOCK_RANKS].

    Grid (blocks of rows, G, lows * blocks of ranks). low [lows, T, R] float32, written where slots[t] is
    active; x [T, K], rows `x_stride` elements apart; down [S, R, K]; slots [T] and active [A] int32;
    num_rows: T; num_active: A; ranks: R of all parts; features: K; a split has `split_features`, of which
    BLOCK_WIDTH are multiplied at a time.
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    own = tl.load(slots + row, mask=row < num_rows, other=-1)
    rank_blocks = tl.cdiv(ranks, BLOCK_RANKS)
    rank = (tl.program_id(2) % rank_blocks) * BLOCK_RANKS + tl.arange(0, BLOCK_RANKS)
    place = tl.program_id(2) // rank_blocks
    is_rank = rank < ranks
    x_row = x + row.to(tl.int64)[:, None] * x_stride
    for index in range(tl.program_id(1), num_active, tl.num_programs(1)):
        slot = tl.load(active + index)
        is_row = own == slot
        if tl.max(is_row.to(tl.int32), 0) > 0:
            down_rank = down + slot.to(tl.int64) * ranks * features + rank[None, :] * features
            total = tl.zeros((BLOCK_ROWS, BLOCK_RANKS), tl.float32)
            for split in range(place * splits_each, (place + 1) * splits_each):
                sums = tl.zeros((BLOCK_ROWS, BLOCK_RANKS), tl.float32)
                end = tl.minimum((split + 1) * split_features, features)
                for begin in range(split * split_features, end, BLOCK_WIDTH):
                    k = begin + tl.arange(0, BLOCK_WIDTH)
                    is_k = k < end
                    xs = tl.load(x_row + k[None, :], mask=is_row[:, None] & is_k[None, :], other=0.0)
                    ds = tl.load(down_rank + k[:, None], mask=is_k[:, None] & is_rank[None, :], other=0.0)
                    sums = tl.dot(xs, ds, sums, input_precision="ieee")
                total += sums
            target = low + place * num_rows * ranks + row[:, None] * ranks + rank[None, :]
            tl.store(target, total, mask=is_row[:, None] & is_rank[None, :])


@triton.jit(do_not_specialize=_OF_STEP, do_not_specialize_on_alignment=_OF_STEP)
def _expand(
    y,
    low,
    up,
    slots,
    active,
    num_rows,
    num_active,
    y_stride,
    own_ranks,
    ranks,
    num_columns,
    ENDS: tl.constexpr,
    NUM_LOWS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_RANKS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """y[t, part] += (Σ_i low[i, t, part]) up[slots[t], :, part]: [BLOCK_ROWS, BLOCK_WIDTH columns].

    Grid (blocks of rows, G, blocks of columns). y [T, N], rows `y_stride` elements apart, updated; up
    [S, r, N]; low, slots, active: as in _shrink; own_ranks: r of one part; ranks: R; num_columns: N; ENDS:
    one past each part's last column. Columns of a block in two parts are multiplied part by part.
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    own = tl.load(slots + row, mask=row < num_rows, other=-1)
    first = tl.program_id(2) * BLOCK_WIDTH
    column = first + tl.arange(0, BLOCK_WIDTH)
    last = tl.minimum(first + BLOCK_WIDTH, num_columns) - 1
    part_of, first_part, last_part = column * 0, first * 0, first * 0
    for i in tl.static_range(len(ENDS) - 1):
        part_of += (column >= ENDS[i]).to(tl.int32)
        first_part += (first >= ENDS[i]).to(tl.int32)
        last_part += (last >= ENDS[i]).to(tl.int32)
    is_column = column < num_columns
    steps = tl.cdiv(own_ranks, BLOCK_RANKS)
    targets = y + row.to(tl.int64)[:, None] * y_stride + column[None, :]
    for index in range(tl.program_id(1), num_active, tl.num_programs(1)):
        slot = tl.load(active + index)
        is_row = own == slot
        if tl.max(is_row.to(tl.int32), 0) > 0:
            up_column = up + slot.to(tl.int64) * own_ranks * num_columns + column[None, :]
            total = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
            for step in range(first_part * steps, (last_part + 1) * steps):
                part = step // steps
                rank = (step % steps) * BLOCK_RANKS + tl.arange(0, BLOCK_RANKS)
                is_rank = rank < own_ranks
                own_low = low + row[:, None] * ranks + part * own_ranks + rank[None, :]
                low_mask = is_row[:, None] & is_rank[None, :]
                lows = tl.zeros((BLOCK_ROWS, BLOCK_RANKS), tl.float32)
                for i in tl.static_range(NUM_LOWS):
                    lows += tl.load(own_low + i * num_rows * ranks, mask=low_mask, other=0.0)
                up_mask = is_rank[:, None] & (is_column & (part_of == part))[None, :]
                ups = tl.load(up_column + rank[:, None] * num_columns, mask=up_mask, other=0.0)
                total = tl.dot(lows.to(ups.dtype), ups, total, input_precision="ieee")
            mask = is_row[:, None] & is_column[None, :]
            before = tl.load(targets, mask=mask, other=0.0)
            tl.store(targets, (before.to(tl.float32) + total).to(before.dtype), mask=mask)

"""Adapters in torch: one product per long run, batched products over the rows gathered by slot."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.lora.rows import AdapterRows, Gathered, Segment
from backend.kernels.lora.weights import SlotWeights


def add_adapters(y: Tensor, x: Tensor, weights: SlotWeights, rows: AdapterRows) -> None:
    """See the package."""
    for run in rows.runs:
        _add_run(y, x, weights, run)
    gathered = rows.gathered
    if gathered is None:
        return
    if gathered.is_even:
        _add_even(y, x, weights, gathered)
        return
    if gathered.padded is None:
        delta = _by_segment(x, weights, gathered, y.shape[1])
    else:
        delta = _batched(x, weights, gathered, gathered.padded)
    if gathered.covers_all:
        y += delta.index_select(0, gathered.inverse)
        return
    if gathered.places is not None:
        delta = delta.index_select(0, gathered.places)
    if gathered.first_row >= 0:
        y[gathered.first_row : gathered.first_row + len(delta)] += delta
        return
    y.index_copy_(0, gathered.rows, y.index_select(0, gathered.rows) + delta)


def _add_run(y: Tensor, x: Tensor, weights: SlotWeights, run: Segment) -> None:
    if run.end - run.begin < len(x):
        x, y = x[run.begin : run.end], y[run.begin : run.end]
    down, ups = weights.slots(run.slot, 1)
    low = torch.mm(x, down[0])
    if len(ups) == 1:
        y.addmm_(low, ups[0][0])
        return
    for block, up in zip(weights.blocks, ups, strict=True):
        y[:, block.columns].addmm_(low[:, block.ranks], up[0])


def _add_even(y: Tensor, x: Tensor, weights: SlotWeights, gathered: Gathered) -> None:
    """Nothing to gather and nothing to put back: what decoding is when steps are planned by adapter."""
    begin, num_rows, num_groups = gathered.first_row, len(gathered.rows), gathered.num_groups
    if num_rows < len(x):
        x, y = x[begin : begin + num_rows], y[begin : begin + num_rows]
    down, ups = weights.slots(gathered.first_slot, num_groups)
    low = torch.bmm(x.view(num_groups, -1, x.shape[1]), down)
    groups = y.view(num_groups, -1, y.shape[1])
    if len(ups) == 1:
        groups.baddbmm_(low, ups[0])
        return
    for block, up in zip(weights.blocks, ups, strict=True):
        groups[:, :, block.columns] += torch.bmm(low[:, :, block.ranks], up)


def _batched(x: Tensor, weights: SlotWeights, gathered: Gathered, padded: Tensor) -> Tensor:
    """The padded groups' sums, one product per matrix for all slots; [padded rows, N]."""
    down, ups = weights.slots(gathered.first_slot, gathered.num_groups)
    groups = x.index_select(0, padded).view(gathered.num_groups, -1, x.shape[1])
    low = torch.bmm(groups, down)
    if len(ups) == 1:
        delta = torch.bmm(low, ups[0])
    else:
        pairs = zip(weights.blocks, ups, strict=True)
        delta = torch.cat([torch.bmm(low[:, :, block.ranks], up) for block, up in pairs], dim=2)
    return delta.view(len(padded), -1)


def _by_segment(x: Tensor, weights: SlotWeights, gathered: Gathered, width: int) -> Tensor:
    """The sorted rows' sums, slot by slot; [n, N]."""
    chosen = x.index_select(0, gathered.rows)
    delta = chosen.new_empty(len(chosen), width)
    for segment in gathered.segments:
        low = chosen[segment.begin : segment.end] @ weights.down[segment.slot].T
        for block in weights.blocks:
            delta[segment.begin : segment.end, block.columns] = low[:, block.ranks] @ block.up[segment.slot]
    return delta

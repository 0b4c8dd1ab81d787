"""LoRA in torch: batched products over rows that are consecutive by slot, and over the others, gathered."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.lora.rows import AdapterRows, Block, Gathered
from backend.kernels.lora.weights import SlotWeights


def add_adapters(y: Tensor, x: Tensor, weights: SlotWeights, rows: AdapterRows) -> None:
    """y[t] += up[slot[t]]ᵀ (down[slot[t]] x[t]), in place."""
    for block in rows.blocks:
        _add_block(y, x, weights, block)
    gathered = rows.gathered
    if gathered is None:
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
    y.index_copy_(0, gathered.rows, y.index_select(0, gathered.rows) + delta)


def _add_block(y: Tensor, x: Tensor, weights: SlotWeights, block: Block) -> None:
    """Add a block's adapters in place, without gathering: the usual case, as steps are ordered by adapter."""
    if not block.is_whole:
        x, y = x[block.begin : block.end], y[block.begin : block.end]
    num_groups = block.num_groups
    down, ups = weights.slots(block.first_slot, num_groups)
    if num_groups == 1:
        _add_group(y, x, down[0], weights, ups)
        return
    low = torch.bmm(x.view(num_groups, -1, weights.in_features), down)
    groups = y.view(num_groups, -1, weights.out_features)
    if len(ups) == 1:
        groups.baddbmm_(low, ups[0])
        return
    for part, up in zip(weights.parts, ups, strict=True):
        groups[:, :, part.columns].baddbmm_(low[:, :, part.ranks], up)


def _add_group(y: Tensor, x: Tensor, down: Tensor, weights: SlotWeights, ups: list[Tensor]) -> None:
    low = torch.mm(x, down)
    if len(ups) == 1:
        y.addmm_(low, ups[0][0])
        return
    for part, up in zip(weights.parts, ups, strict=True):
        y[:, part.columns].addmm_(low[:, part.ranks], up[0])


def _batched(x: Tensor, weights: SlotWeights, gathered: Gathered, padded: Tensor) -> Tensor:
    """The padded groups' terms by one product per matrix for all slots: [padded rows, N]."""
    down, ups = weights.slots(gathered.first_slot, gathered.num_groups)
    groups = x.index_select(0, padded).view(gathered.num_groups, -1, x.shape[1])
    low = torch.bmm(groups, down)
    if len(ups) == 1:
        delta = torch.bmm(low, ups[0])
    else:
        pairs = zip(weights.parts, ups, strict=True)
        delta = torch.cat([torch.bmm(low[:, :, part.ranks], up) for part, up in pairs], dim=2)
    return delta.view(len(padded), -1)


def _by_segment(x: Tensor, weights: SlotWeights, gathered: Gathered, width: int) -> Tensor:
    """The sorted rows' terms, slot by slot: [n, N]."""
    chosen = x.index_select(0, gathered.rows)
    delta = chosen.new_empty(len(chosen), width)
    for segment in gathered.segments:
        low = chosen[segment.begin : segment.end] @ weights.down[segment.slot].T
        for part in weights.parts:
            delta[segment.begin : segment.end, part.columns] = low[:, part.ranks] @ part.up[segment.slot]
    return delta

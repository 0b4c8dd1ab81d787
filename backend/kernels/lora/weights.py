"""The adapters of one linear layer by slot, laid out for multiplication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.kernels.lora.looped import LoopWeights

RANK_STEP = 4
"""Ranks are rounded up to a multiple of this, so that a slightly higher one fits without reallocation."""

_MAX_VIEWS = 64

Factors = tuple[Tensor, Tensor]
"""(down [r, K], up [r, columns]) of one part; the scale is in `up`."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One of the stacked projections."""

    up: Tensor  # [slots, ranks, columns], a view
    ranks: slice  # its rows of `down`
    columns: slice  # its columns of `up` and of y


class SlotWeights:
    """Slots for the adapters of one (stacked) linear layer; ranks are padded with zeros."""

    __slots__ = ("_views", "down", "in_features", "looped", "out_features", "parts", "rank", "up")

    def __init__(
        self, num_slots: int, in_features: int, columns: Sequence[int], rank: int, like: Tensor
    ) -> None:
        """`columns`: the outputs of each part; `like` gives dtype and device."""
        self.rank = -(-rank // RANK_STEP) * RANK_STEP
        self._views: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        ends = np.cumsum(columns, dtype=np.int64)
        self.in_features, self.out_features = in_features, int(ends[-1])
        self.down = like.new_zeros(num_slots, len(columns) * self.rank, in_features)
        self.up = like.new_zeros(num_slots, self.rank, self.out_features)
        self.parts = [
            Part(
                self.up[:, :, end - width : end],
                slice(part * self.rank, (part + 1) * self.rank),
                slice(end - width, end),
            )
            for part, (end, width) in enumerate(zip(ends.tolist(), columns, strict=True))
        ]
        is_looped = like.device.type == "cpu" and like.dtype is torch.float32
        self.looped = LoopWeights(num_slots, in_features, columns, self.rank) if is_looped else None

    def slots(self, first: int, count: int) -> tuple[Tensor, list[Tensor]]:
        """Cached views of `count` slots: down [count, K, ranks], and up of each part."""
        found = self._views.get((first, count))
        if found is None:
            span = slice(first, first + count)
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            found = self.down[span].mT, [part.up[span] for part in self.parts]
            self._views[first, count] = found
        return found

    def put(self, slot: int, parts: Mapping[int, Factors]) -> None:
        """Replace the adapter in `slot`; parts that are not in `parts` get zeros."""
        self.clear(slot)
        for number, (down, up) in parts.items():
            part, rank = self.parts[number], len(down)
            self.down[slot, part.ranks][:rank] = down
            part.up[slot, :rank] = up
        if self.looped is not None:
            self.looped.put(slot, self.down[slot], self.up[slot])

    def clear(self, slot: int) -> None:
        """Empty `slot`: zeros."""
        self.down[slot].zero_()
        self.up[slot].zero_()
        if self.looped is not None:
            self.looped.clear(slot)

    def grown(self, rank: int) -> SlotWeights:
        """A copy of all slots with room for a higher rank."""
        num_slots, _, in_features = self.down.shape
        columns = [part.columns.stop - part.columns.start for part in self.parts]
        larger = SlotWeights(num_slots, in_features, columns, rank, self.down)
        for slot in range(num_slots):
            own = {i: (self.down[slot, part.ranks], part.up[slot]) for i, part in enumerate(self.parts)}
            larger.put(slot, own)
        return larger

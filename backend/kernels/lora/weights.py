"""The adapters of one linear layer by slot, laid out for multiplication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

_JOINED_ELEMENTS = 1 << 16
"""Up to here one product with the parts' block-diagonal matrix costs less than one product per part."""

_MAX_VIEWS = 64

_WIDE_RANKS = 16
"""From so many ranks on a processor multiplies by `down` faster when it lies as [K, ranks] in memory."""

Factors = tuple[Tensor, Tensor]
"""(down [r, K], up [r, columns]) of one part; the scale is in `up`."""


@dataclass(frozen=True, slots=True, eq=False)
class UpBlock:
    """What turns some of the low-rank numbers into some of the output's columns."""

    up: Tensor  # [slots, ranks, columns]
    ranks: slice
    columns: slice


class SlotWeights:
    """Slots for the adapters of one (stacked) linear layer; ranks are padded with zeros."""

    __slots__ = ("_columns", "_views", "blocks", "down", "in_features", "out_features", "rank")

    def __init__(
        self, num_slots: int, in_features: int, columns: Sequence[int], rank: int, like: Tensor
    ) -> None:
        """`columns`: the outputs of each part; `like` gives dtype and device."""
        self.rank = rank
        self._columns = tuple(columns)
        self._views: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        num_parts, total = len(columns), sum(columns)
        self.in_features, self.out_features = in_features, total
        self.down = _new_down(num_slots, num_parts * rank, in_features, like)
        if num_parts * rank * total <= _JOINED_ELEMENTS:
            spans = [(slice(0, num_parts * rank), slice(0, total))]
        else:
            spans = [(slice(i * rank, (i + 1) * rank), self._span(i)) for i in range(num_parts)]
        self.blocks = [
            UpBlock(like.new_zeros(num_slots, rows.stop - rows.start, span.stop - span.start), rows, span)
            for rows, span in spans
        ]

    def slots(self, first: int, count: int) -> tuple[Tensor, list[Tensor]]:
        """Of `count` slots: down [count, K, ranks], and up of each block. Views are dear: they are kept."""
        found = self._views.get((first, count))
        if found is None:
            span = slice(first, first + count)
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            found = self.down[span].mT, [block.up[span] for block in self.blocks]
            self._views[first, count] = found
        return found

    def put(self, slot: int, parts: Mapping[int, Factors]) -> None:
        """Replace what `slot` holds; parts that are not named get zeros."""
        self.clear(slot)
        for part, (down, up) in parts.items():
            begin, rank = part * self.rank, len(down)
            self.down[slot, begin : begin + rank] = down
            columns = self._span(part)
            for block in self.blocks:
                if block.columns.start <= columns.start and columns.stop <= block.columns.stop:
                    row, column = begin - block.ranks.start, columns.start - block.columns.start
                    block.up[slot, row : row + rank, column : column + up.shape[1]] = up

    def clear(self, slot: int) -> None:
        """Make `slot` change nothing."""
        self.down[slot].zero_()
        for block in self.blocks:
            block.up[slot].zero_()

    def grown(self, rank: int) -> SlotWeights:
        """The same adapters with room for a greater rank."""
        num_slots, _, in_features = self.down.shape
        larger = SlotWeights(num_slots, in_features, self._columns, rank, self.down)
        for slot in range(num_slots):
            larger.put(slot, {part: self._factors(slot, part) for part in range(len(self._columns))})
        return larger

    def _factors(self, slot: int, part: int) -> Factors:
        begin, columns = part * self.rank, self._span(part)
        block = next(b for b in self.blocks if columns.stop <= b.columns.stop)
        row, column = begin - block.ranks.start, columns.start - block.columns.start
        width = columns.stop - columns.start
        up = block.up[slot, row : row + self.rank, column : column + width]
        return self.down[slot, begin : begin + self.rank], up

    def _span(self, part: int) -> slice:
        begin = sum(self._columns[:part])
        return slice(begin, begin + self._columns[part])


def _new_down(num_slots: int, ranks: int, in_features: int, like: Tensor) -> Tensor:
    """Zeros [slots, ranks, K]."""
    if like.is_cuda or ranks < _WIDE_RANKS:
        return like.new_zeros(num_slots, ranks, in_features)
    return like.new_zeros(num_slots, in_features, ranks).mT

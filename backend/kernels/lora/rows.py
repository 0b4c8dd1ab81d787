"""Which rows of a matrix of activations use which adapter slot, grouped for multiplication.

Runs of consecutive rows with one slot (a prompt's; decodes, which a step orders by slot) are multiplied in
place. Others are gathered by slot. Rows without an adapter are in no group: they cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.upload import upload

LONG_BLOCK = 16
"""Runs of at least this many rows get a product of their own."""

FEW_BLOCKS = 3
"""Up to this many shorter runs, separate products cost less than gathering and scattering their rows."""

_MAX_PADDING = 2.0
"""Groups are padded to equal size if that gives at most this many times the rows."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `begin` to `end` of the gathered rows use `slot`."""

    slot: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `begin` to `end` of the matrix: equally many for each of `num_groups` consecutive slots."""

    begin: int
    end: int
    first_slot: int
    num_groups: int
    is_whole: bool  # the block has all rows of the matrix


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Rows that are not consecutive by slot, sorted by slot."""

    rows: Tensor  # [n] indices into the matrix, sorted by slot
    segments: tuple[Segment, ...]  # of the sorted rows
    covers_all: bool  # every row of the matrix is one of them
    inverse: Tensor  # [n] for each adapted row, in the order of the matrix: its index among the sorted rows
    # If the groups are of similar size: all slots from `first_slot` on, padded with row 0 to equal counts.
    first_slot: int = 0
    num_groups: int = 0
    padded: Tensor | None = None  # [num_groups * rows per group]
    places: Tensor | None = None  # [n] index of each sorted row among the padded ones


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSlots:
    """What Triton's kernels read, on their device."""

    slots: Tensor  # [T] int32: each row's slot, -1 without an adapter
    active: Tensor  # [A] int32: slots that rows may have, each once, and -2; others are not touched

    @staticmethod
    def packed(block: Tensor, num_rows: int) -> DeviceSlots:
        """Both in one block, the active slots behind those of the rows."""
        return DeviceSlots(block[:num_rows], block[num_rows:])

    def select(self, index: Tensor) -> DeviceSlots:
        """The slots of some rows. Active slots that none of them has cost little."""
        return DeviceSlots(self.slots.index_select(0, index), self.active)


class AdapterRows:
    """The adapters of a matrix's T rows; made once per step, used by every layer."""

    def __init__(
        self, slots: Ints, device: torch.device, on_device: Callable[[], DeviceSlots] | None = None
    ) -> None:
        """`slots` [T]: each row's slot, -1 without an adapter; at least one row has one.

        `on_device` gives the same where it need not be copied to the device.
        """
        self.slots = slots
        self.device = device
        self._on_device = on_device or self._copied

    @cached_property
    def address(self) -> int:
        """The address of `slots`; asking for it takes as long as a small product."""
        return self.slots.ctypes.data

    @cached_property
    def _parts(self) -> tuple[list[Block], Ints]:
        """The blocks that are multiplied in place, and the indices of the other adapted rows."""
        blocks = _blocks(self.slots)
        small = [block for block in blocks if block.end - block.begin < LONG_BLOCK]
        if len(small) <= FEW_BLOCKS:
            return blocks, np.empty(0, dtype=np.int64)
        scattered = np.concatenate([np.arange(block.begin, block.end) for block in small])
        return [block for block in blocks if block.end - block.begin >= LONG_BLOCK], scattered

    @cached_property
    def blocks(self) -> list[Block]:
        """Rows that are multiplied in place."""
        return self._parts[0]

    @cached_property
    def gathered(self) -> Gathered | None:
        """All other adapted rows; None if there are none."""
        rows = self._parts[1]
        return _gather(rows, self.slots, self.device) if len(rows) else None

    @cached_property
    def on_device(self) -> DeviceSlots:
        """The slots for Triton's kernels, which alone ask for them."""
        return self._on_device()

    def _copied(self) -> DeviceSlots:
        """Copied in one block, for which the host does not wait."""
        slots = self.slots
        active = np.unique(slots[slots >= 0])
        return DeviceSlots(*upload([slots.astype(np.int32), active.astype(np.int32)], self.device))

    def select(self, index: Ints, on_device: Tensor | None = None) -> AdapterRows | None:
        """The adapters of these rows of the matrix; None if none of them has one.

        With `on_device`, which is the same index there, nothing is copied.
        """
        slots = self.slots[index]
        if not (slots >= 0).any():
            return None
        if on_device is None:
            return AdapterRows(slots, self.device)
        return AdapterRows(slots, self.device, lambda: self.on_device.select(on_device))


def rows_of_one(slot: int, num_rows: int, device: torch.device) -> AdapterRows | None:
    """`num_rows` rows that all use `slot`; None for -1. Nothing is copied to the device."""
    if slot < 0:
        return None

    def filled() -> DeviceSlots:
        block = torch.full((num_rows + 1,), slot, dtype=torch.int32, device=device)
        return DeviceSlots.packed(block, num_rows)

    return AdapterRows(np.full(num_rows, slot, dtype=np.int64), device, filled)


def _blocks(slots: Ints) -> list[Block]:
    """Runs of adapted rows with one slot; adjacent runs of equal length and consecutive slots are merged."""
    edges = (np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist()
    num_rows = len(slots)
    blocks: list[Block] = []
    for begin, end in zip([0, *edges], [*edges, num_rows], strict=True):
        slot = int(slots[begin])
        if slot < 0:
            continue
        last = blocks[-1] if blocks else None
        if (
            last is not None
            and last.end == begin
            and last.first_slot + last.num_groups == slot
            and (last.end - last.begin) == (end - begin) * last.num_groups
        ):
            is_whole = end - last.begin == num_rows
            blocks[-1] = Block(last.begin, end, last.first_slot, last.num_groups + 1, is_whole)
        else:
            blocks.append(Block(begin, end, slot, 1, end - begin == num_rows))
    return blocks


def _segments(sorted_slots: Ints) -> tuple[Segment, ...]:
    slots, begins = np.unique(sorted_slots, return_index=True)
    ends = np.append(begins[1:], len(sorted_slots))
    return tuple(
        Segment(*values) for values in zip(slots.tolist(), begins.tolist(), ends.tolist(), strict=True)
    )


def _gather(rows: Ints, slots: Ints, device: torch.device) -> Gathered:
    permutation = np.argsort(slots[rows], kind="stable")
    order = rows[permutation]
    inverse = np.empty(len(rows), dtype=np.int64)
    inverse[permutation] = np.arange(len(rows))
    segments = _segments(slots[order])
    plain = Gathered(
        rows=torch.from_numpy(order).to(device),
        segments=segments,
        covers_all=len(rows) == len(slots),
        inverse=torch.from_numpy(inverse).to(device),
    )
    first, num_groups = segments[0].slot, segments[-1].slot - segments[0].slot + 1
    group_rows = max(segment.end - segment.begin for segment in segments)
    if num_groups * group_rows > _MAX_PADDING * len(rows) and len(segments) > 1:
        return plain
    padded = np.zeros((num_groups, group_rows), dtype=np.int64)
    places = np.empty(len(rows), dtype=np.int64)
    for segment in segments:
        group, count = segment.slot - first, segment.end - segment.begin
        padded[group, :count] = order[segment.begin : segment.end]
        places[segment.begin : segment.end] = group * group_rows + np.arange(count)
    return Gathered(
        rows=plain.rows,
        segments=segments,
        covers_all=plain.covers_all,
        inverse=torch.from_numpy(places[inverse]).to(device),
        first_slot=first,
        num_groups=num_groups,
        padded=torch.from_numpy(padded.reshape(-1)).to(device),
        places=torch.from_numpy(places).to(device),
    )

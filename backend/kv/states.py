"""Recurrent states of sequences: one slot for each row of running sequences, in float32.

A slot is the state after some position of its sequence, and a log: the inputs of the tokens after it. A
chunk that fits into the log only writes there, and what of it counts is replayed when the next one begins: so
drafts may be rejected, and a step may be run again. A longer chunk changes the state; where its step must be
run again, `is_ready` says no, and the sequence is to be computed from a checkpoint, a copied slot, or its
beginning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from backend.config import StateSpec
from backend.kernels.recurrent import Chunks, State

MAX_LOGGED = 9
"""A token and the longest draft that such models verify."""

_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The shape of a model's states: those of the layers that have one."""

    specs: tuple[StateSpec, ...]
    device: torch.device

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot over all layers."""
        return sum(4 * math.prod(shape) for spec in self.specs for shape in slot_shapes(spec))


def slot_shapes(spec: StateSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A slot in one layer: the state, and the inputs that a convolution sees before it and the log."""
    return spec.state_shape, (spec.conv_tokens - 1 + MAX_LOGGED, spec.row_width)


class StateStorage:
    """By layer, tensors whose first dimension is the slots; and each slot's position."""

    __slots__ = ("_logged", "_positions", "layers", "layout")

    def __init__(self, layout: StateLayout, num_slots: int) -> None:
        self.layout = layout
        self.layers = [
            State(*(torch.zeros(num_slots, *shape, device=layout.device) for shape in slot_shapes(spec)))
            for spec in layout.specs
        ]
        self._positions = np.full(num_slots, _UNKNOWN, dtype=np.int64)
        self._logged = np.zeros(num_slots, dtype=np.int64)

    @property
    def num_slots(self) -> int:
        """Slots in total."""
        return len(self._positions)

    def is_ready(self, slot: int, start: int) -> bool:
        """Whether a chunk can begin here: the last one of its sequence ended there, or is in the log."""
        first = self._positions[slot]
        return start == 0 or bool(first != _UNKNOWN and first <= start <= first + self._logged[slot])

    def begin(self, slots: Sequence[int], query_lens: Sequence[int], context_lens: Sequence[int]) -> Chunks:
        """The chunks of a step. Until `end` their slots count as lost."""
        counts, ends = np.array(query_lens, dtype=np.int64), np.array(context_lens, dtype=np.int64)
        own, starts = np.array(slots, dtype=np.int64), ends - counts
        assert all(map(self.is_ready, slots, starts.tolist())), "a state is not that before its chunk"
        is_new = starts == 0
        replayed = np.where(is_new, 0, starts - self._positions[own])
        self._positions[own] = _UNKNOWN
        return np.stack((own, replayed, counts.cumsum() - counts, counts, is_new, starts), axis=1)

    def copy(self, source: int, target: int, position: int) -> None:
        """Give the slot `target` what `source` holds, to go on from this position there."""
        assert self.is_ready(source, position), f"slot {source} holds no state at {position}"
        for layer in self.layers:
            for tensor in layer:
                tensor[target] = tensor[source]
        self._positions[target] = self._positions[source]
        self._logged[target] = self._logged[source]

    def end(self, chunks: Chunks) -> None:
        """All layers have computed them."""
        slots, counts, starts = chunks[:, 0], chunks[:, 3], chunks[:, 5]
        is_logged = counts <= MAX_LOGGED
        self._positions[slots] = np.where(is_logged, starts, starts + counts)
        self._logged[slots] = np.where(is_logged, counts, 0)

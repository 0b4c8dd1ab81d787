"""Recurrent states of sequences: one slot for each row of running sequences, in float32.

A slot is the state after some position of its sequence, and a log: the inputs of the tokens after it. A
chunk that fits into the log only writes there, and what of it counts is replayed when the next one begins: so
drafts may be rejected, and a step may be run again. A longer chunk changes the state; where its step must be
run again, `is_ready` says no, and the sequence is to be computed from its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from backend.config import DeltaSpec
from backend.kernels.gated_delta import Chunks, DeltaState

MAX_LOGGED = 9
"""A token and the longest draft that such models verify."""

_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The shape of a model's states."""

    num_layers: int
    spec: DeltaSpec
    device: torch.device

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot over all layers."""
        spec = self.spec
        recurrent = spec.num_value_heads * spec.key_head_dim * spec.value_head_dim
        return 4 * self.num_layers * (recurrent + self.num_rows * self.num_columns)

    @property
    def num_rows(self) -> int:
        """Inputs that a slot keeps: those before its position that the convolution sees, and the log."""
        return self.spec.conv_tokens - 1 + MAX_LOGGED

    @property
    def num_columns(self) -> int:
        """Numbers of one input, see kernels/gated_delta."""
        return self.spec.num_channels + 2 * self.spec.num_value_heads


class StateStorage:
    """By layer, recurrent [slots, Hv, Dk, Dv] and inputs [slots, rows, columns]; and each slot's position."""

    __slots__ = ("_logged", "_positions", "layers", "layout")

    def __init__(self, layout: StateLayout, num_slots: int) -> None:
        self.layout = layout
        spec, sizes = layout.spec, (layout.num_layers, num_slots)
        shape = *sizes, spec.num_value_heads, spec.key_head_dim, spec.value_head_dim
        recurrent = torch.zeros(shape, device=layout.device)
        rows = torch.zeros(*sizes, layout.num_rows, layout.num_columns, device=layout.device)
        self.layers = [DeltaState(*each) for each in zip(recurrent.unbind(), rows.unbind(), strict=True)]
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

    def copy(self, source: int, target: int) -> None:
        """Give the slot `target` what `source` holds."""
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

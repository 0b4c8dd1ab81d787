"""The KV tensors: one per layer, in pages of 16 slots, key and value of a slot adjacent."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend.errors import CheckpointError
from backend.kernels.kv_write import store
from backend.kernels.quantised_kv import LARGEST, stored_width
from backend.kv.states import StateLayout, StateStorage
from backend.types import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class KVShape:
    """The keys and values of one layer."""

    num_kv_heads: int
    head_dim: int
    source: int | None = None  # the earlier layer of this shape that stores them; None: the layer itself
    sides: int = 2  # 1: only keys; values are parts of them
    is_windowed: bool = False  # only the last tokens are ever read again


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one page of a model's KV memory, and of its recurrent states."""

    layers: tuple[KVShape, ...]  # that attend
    dtype: torch.dtype  # int8 and float8_e4m3fn: with a scale for each slot and head
    device: torch.device
    states: StateLayout | None = None

    def page_shape(self, shape: KVShape) -> tuple[int, ...]:
        """One page of a layer; in 8 bits the last axis is wider than `head_dim`, see quantised_kv.py."""
        return PAGE_TOKENS, shape.sides, shape.num_kv_heads, stored_width(shape.head_dim, self.dtype)

    @property
    def own(self) -> list[int]:
        """The layers that store keys and values themselves."""
        return [number for number, shape in enumerate(self.layers) if shape.source is None]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, keys and values, scales included."""
        return self._page_bytes(self.own)

    @property
    def window_page_bytes(self) -> int:
        """Bytes of one page over the layers with a window."""
        return self._page_bytes([number for number in self.own if self.layers[number].is_windowed])

    def _page_bytes(self, layers: list[int]) -> int:
        pages = (self.page_shape(self.layers[number]) for number in layers)
        return sum(math.prod(page) for page in pages) * self.dtype.itemsize


def _zeros(size: tuple[int, ...], layout: KVLayout, model: str) -> Tensor:
    """Zeros, and not empty, as that also commits the memory now: page faults would slow prefill later.

    Raises CheckpointError if there is too little memory, which torch says by three classes of errors.
    """
    try:
        return torch.zeros(size, dtype=layout.dtype, device=layout.device)
    except (RuntimeError, TypeError, MemoryError):
        num_bytes = math.prod(size) * layout.dtype.itemsize
        raise CheckpointError(
            f"KV memory of {num_bytes:,} bytes cannot be allocated on {str(layout.device)!r}; lower "
            f"kv_cache_bytes or num_pages of model {model!r}"
        ) from None


class KVStorage:
    """Keys and values by layer, [num_pages, 16, sides, kv_heads, width]; axis 2 is (key, value), or (key).

    A page has one number in all layers, but in those with a window where they have pages of their own. Layers
    of one shape are parts of one tensor. Pages start as zeros and only ever hold finite numbers: attention
    multiplies masked slots by 0, and 0 * NaN would leak from one sequence into another.
    """

    __slots__ = ("layers", "layout", "memory", "num_pages", "slots", "states")

    def __init__(
        self,
        layout: KVLayout,
        num_pages: int,
        num_states: int = 1,
        model: str = "",
        *,
        num_window_pages: int | None = None,
    ) -> None:
        """`num_window_pages`: those of layers with a window; None: they have the pages of the others.

        `model`: its name, for the error where memory is short. Raises CheckpointError.
        """
        if num_window_pages is None:
            layout = replace(layout, layers=tuple(replace(own, is_windowed=False) for own in layout.layers))
        self.layout = layout
        self.num_pages = num_pages
        counts = Counter(layout.layers[number] for number in layout.own)
        pages = num_pages, num_window_pages or 0
        # By distinct shape, [its layers, its pages, 16, sides, kv_heads, width].
        self.memory = [
            _zeros((count, pages[shape.is_windowed], *layout.page_shape(shape)), layout, model)
            for shape, count in counts.items()
        ]
        parts = {shape: iter(memory.unbind()) for shape, memory in zip(counts, self.memory, strict=True)}
        self.layers: list[Tensor] = []
        for shape in layout.layers:
            assert shape.source is None or layout.layers[shape.source].is_windowed is shape.is_windowed
            self.layers.append(next(parts[shape]) if shape.source is None else self.layers[shape.source])
        self.states = None if layout.states is None else StateStorage(layout.states, num_states)
        # By layer, [num_pages * 16, sides * kv_heads, width].
        self.slots: list[Tensor] = [layer.flatten(0, 1).flatten(1, 2) for layer in self.layers]

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store `keys_values` [T, sides * kv_heads, head_dim], keys first, at `slots` [T] of one layer."""
        store(keys_values, slots, self.slots[layer])

    def copy_pages(self, pages: Tensor, num_more: int, first_layer: int = 0) -> KVStorage:
        """The layers from `first_layer` on of B sequences, with their pages [B, P] and `num_more` zeroed
        ones each.

        Pages of the copy are ordered by sequence.
        """
        count, width = pages.shape
        layout = replace(self.layout, layers=self.layout.layers[first_layer:], states=None)
        assert not first_layer or len(layout.own) == len(layout.layers), "sources have other numbers there"
        copy = KVStorage(layout, count * (width + num_more))
        for number in layout.own:
            source, target = self.layers[first_layer + number], copy.layers[number]
            target.view(count, width + num_more, *source.shape[1:])[:, :width] = source[pages]
        return copy

    def zero(self, slot: int, window_slot: int) -> None:
        """Zero a slot in every layer; in those with a window of their own pages another one."""
        for slots, shape in zip(self.slots, self.layout.layers, strict=True):
            slots[window_slot if shape.is_windowed else slot] = 0

    def move(self, sources: Tensor, targets: Tensor, *, is_windowed: bool = False) -> None:
        """Copy the slots `sources` [n] to `targets` [n] in every layer, with a window of its own pages or
        without; they may overlap.
        """
        for number in self.layout.own:
            if self.layout.layers[number].is_windowed is not is_windowed:
                continue
            layer = self.slots[number]
            # Torch copies no rows of float8 by index.
            slots = layer.view(torch.int8) if layer.dtype in LARGEST else layer
            slots.index_copy_(0, targets, slots.index_select(0, sources))

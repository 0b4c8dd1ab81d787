"""The KV tensors: one per layer, in pages of 16 slots, key and value of a slot adjacent."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend.kernels.kv_write import store
from backend.kernels.quantised_kv import LARGEST, stored_width
from backend.types import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one page of a model's KV memory."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype  # int8 and float8_e4m3fn: with a scale for each slot and head
    device: torch.device

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, keys and values, scales included."""
        return self.num_layers * PAGE_TOKENS * 2 * self.num_kv_heads * self.width * self.dtype.itemsize

    @property
    def width(self) -> int:
        """Elements of one head of one slot: `head_dim`, or more in 8 bits; see kernels/quantised_kv.py."""
        return stored_width(self.head_dim, self.dtype)


class KVStorage:
    """Keys and values [num_layers, num_pages, 16, 2, kv_heads, width]; axis 3 is (key, value).

    Pages start as zeros and only ever hold finite numbers: attention multiplies masked slots by 0, and
    0 * NaN would leak from one sequence into another.
    """

    __slots__ = ("layers", "layout", "memory", "slots")

    def __init__(self, layout: KVLayout, num_pages: int) -> None:
        self.layout = layout
        shape = (layout.num_layers, num_pages, PAGE_TOKENS, 2, layout.num_kv_heads, layout.width)
        # zeros, not empty, also commits the memory now: page faults during requests would slow their prefill.
        self.memory = torch.zeros(shape, dtype=layout.dtype, device=layout.device)
        self.layers = list(self.memory.unbind())
        # By layer, [num_pages * 16, 2 * kv_heads, width].
        self.slots: list[Tensor] = [layer.flatten(0, 1).flatten(1, 2) for layer in self.layers]

    @property
    def num_pages(self) -> int:
        """Pages in total, free or not."""
        return int(self.layers[0].shape[0])

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store `keys_values` [T, 2 * kv_heads, head_dim], keys first, at `slots` [T] of one layer."""
        store(keys_values, slots, self.slots[layer])

    def copy_pages(self, pages: Tensor, num_more: int, first_layer: int = 0) -> KVStorage:
        """The layers from `first_layer` on of B sequences, with their pages [B, P] and `num_more` zeroed
        ones each.

        Pages of the copy are ordered by sequence.
        """
        count, width = pages.shape
        layout = replace(self.layout, num_layers=self.layout.num_layers - first_layer)
        copy = KVStorage(layout, count * (width + num_more))
        for source, target in zip(self.layers[first_layer:], copy.layers, strict=True):
            target.view(count, width + num_more, *source.shape[1:])[:, :width] = source[pages]
        return copy

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy the slots `sources` [n] to `targets` [n] in every layer; they may overlap."""
        for layer in self.slots:
            # Torch copies no rows of float8 by index.
            slots = layer.view(torch.int8) if layer.dtype in LARGEST else layer
            slots.index_copy_(0, targets, slots.index_select(0, sources))

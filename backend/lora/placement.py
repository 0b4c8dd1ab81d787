"""Copies adapters from host memory into the device slots of the layers that they change."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from backend.kernels.lora import Factors, SlotWeights, warm_up
from backend.layers.linear import Linear
from backend.lora.adapter_weights import Adapter, Sites


class AdapterPlacement:
    """Owns the slot memory of every layer that an adapter changes."""

    def __init__(self, sites: Sites, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._sites = sites
        self._num_slots = num_slots
        self._dtype, self._device = dtype, device
        self._filled: dict[int, set[Linear]] = {}  # slot → layers in which it is not zero
        self.version = 0  # grows when a layer gets other memory
        warm_up(dtype, device)

    def reserve(self, adapter: Adapter) -> None:
        """Allocate the slots that the adapter needs, so that `place` need not.

        Raises torch.OutOfMemoryError or MemoryError.
        """
        for linear, parts in self._by_layer(adapter).items():
            self._weights(linear, _rank_of(parts))

    def place(self, slot: int, adapter: Adapter) -> None:
        """Make `slot` hold `adapter` and nothing else.

        Raises torch.OutOfMemoryError or MemoryError; the slot can be filled again after that.
        """
        by_layer = self._by_layer(adapter)
        filled = self._filled.setdefault(slot, set())  # kept true at every step: each call below may fail
        for linear in filled - by_layer.keys():
            assert linear.adapters is not None
            linear.adapters.clear(slot)
            filled.remove(linear)
        for linear, parts in by_layer.items():
            moved = {part: (down.to(self._device), up.to(self._device)) for part, (down, up) in parts.items()}
            weights = self._weights(linear, _rank_of(parts))
            filled.add(linear)
            weights.put(slot, moved)

    def _by_layer(self, adapter: Adapter) -> dict[Linear, dict[int, Factors]]:
        found: dict[Linear, dict[int, Factors]] = {}
        for module, factors in adapter.factors.items():
            site = self._sites[module]
            found.setdefault(site.linear, {})[site.part] = factors
        return found

    def _weights(self, linear: Linear, rank: int) -> SlotWeights:
        """The layer's slot memory, with room for `rank`."""
        weights = linear.adapters
        if weights is None:
            like = torch.empty(0, dtype=self._dtype, device=self._device)
            weights = SlotWeights(self._num_slots, linear.in_features, linear.part_features, rank, like)
        elif weights.rank < rank:
            weights = weights.grown(rank)
        if weights is not linear.adapters:
            linear.adapters = weights
            self.version += 1
        return weights


def _rank_of(parts: Mapping[int, Factors]) -> int:
    return max(len(down) for down, _ in parts.values())

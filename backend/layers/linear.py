"""Linear layer: a weight in the layout that suits the device, plus the LoRA terms of its adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.kernels.experts import ExpertMatrices
from backend.kernels.linear import PlainWeight, WeightLayout
from backend.kernels.linear.w4a16 import DeviceInt4Weight
from backend.kernels.linear.w8 import Device8BitWeight
from backend.kernels.lora import AdapterRows, SlotWeights, add_adapters
from backend.quant.products import pack
from backend.quant.schemes import QuantizedWeight


class Linear:
    """y = x Wᵀ + b; several projections of one input are stacked into one weight."""

    __slots__ = ("adapters", "in_features", "multiply", "out_features", "part_features")

    def __init__(
        self, weights: Sequence[Tensor | QuantizedWeight], biases: list[Tensor] | None, layout: WeightLayout
    ) -> None:
        """`weights` [N_i, K] and `biases` [N_i] are stacked in order; both may be freed afterwards."""
        bias = None if not biases else torch.cat(biases)
        self.part_features = tuple(weight.shape[0] for weight in weights)
        self.out_features, self.in_features = sum(self.part_features), weights[0].shape[1]
        self.adapters: SlotWeights | None = None  # made when the first adapter needs them
        self.multiply = pack(weights, bias, layout)

    @property
    def matrix(self) -> Tensor:
        """The weight [N, K] of a layer in the layout "plain", without bias."""
        own = self.multiply
        assert isinstance(own, PlainWeight | DeviceInt4Weight | Device8BitWeight) and own.bias is None
        return own.weight

    def move_to(self, memory: ExpertMatrices, expert: int) -> None:
        """Keep the matrix of such a layer in `memory`, as that of `expert`."""
        own = self.multiply
        assert isinstance(own, PlainWeight | DeviceInt4Weight | Device8BitWeight)
        self.multiply = memory.put(expert, own)

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """[T, K] → [T, N]; `rows` says which of the T rows use an adapter."""
        y = self.multiply(x)
        if rows is not None and self.adapters is not None:
            add_adapters(y, x, self.adapters, rows)
        return y


@dataclass(frozen=True, slots=True)
class LinearPart:
    """One of the projections that a Linear stacks: a module, in PEFT's terms."""

    linear: Linear
    part: int
    order: Tensor | None = None  # its row i is row order[i] of the checkpoint's module

    @property
    def in_features(self) -> int:
        """K, the inputs."""
        return self.linear.in_features

    @property
    def columns(self) -> int:
        """The projection's own outputs, of the Linear's N."""
        return self.linear.part_features[self.part]

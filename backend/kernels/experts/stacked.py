"""All experts of a layer in two tensors, for a GPU: grouped products need no second copy and no host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backend.kernels.linear import PlainWeight
from backend.kernels.linear.w4a16 import DeviceInt4Weight
from backend.kernels.linear.w8 import Device8BitWeight
from backend.kernels.lora import AdapterRows, DeviceSlots
from backend.kernels.swiglu import swiglu

if TYPE_CHECKING:
    from backend.kernels.experts import ExpertWeight, Gate


class ExpertMatrices:
    """One matrix [N, K] of each expert: in floats, or in 8 bits where all experts' are."""

    __slots__ = ("_dtype", "_num_experts", "scales", "values")

    def __init__(self, num_experts: int, dtype: torch.dtype) -> None:
        """`dtype` of floats. The memory is taken with the first expert's."""
        self._num_experts, self._dtype = num_experts, dtype
        self.values = torch.empty(0)  # [E, N, K]
        self.scales: tuple[Tensor, tuple[int, int]] | None = None
        """The scales of 8 bits [E, ceil(N / rows), ceil(K / columns)], and their block (rows, columns)."""

    def put(
        self, expert: int, own: PlainWeight | DeviceInt4Weight | Device8BitWeight
    ) -> PlainWeight | Device8BitWeight:
        """Copy an expert's matrix here, in their order; the result is that copy."""
        if expert == 0:
            self._allocate(own)
        if self.scales is not None:
            scales, block = self.scales
            if isinstance(own, Device8BitWeight) and (own.values.dtype, own.block) == (
                self.values.dtype,
                block,
            ):
                own.move_to(self.values[expert], scales[expert])
                return own
            self._widen(expert)
        return PlainWeight(self.values[expert].copy_(own.weight), own.bias)

    def _allocate(self, like: PlainWeight | DeviceInt4Weight | Device8BitWeight) -> None:
        if isinstance(like, Device8BitWeight):
            self.values = like.values.new_empty(self._num_experts, *like.values.shape)
            self.scales = like.scales.new_empty(self._num_experts, *like.scales.shape), like.block
            return
        shape = self._num_experts, *like.weight.shape
        self.values = like.weight.new_empty(shape, dtype=self._dtype)

    def _widen(self, count: int) -> None:
        """Store floats from now on: formats of experts differ."""
        assert self.scales is not None
        values, (scales, block), self.scales = self.values, self.scales, None
        self.values = values.new_empty(values.shape, dtype=self._dtype)
        for expert in range(count):
            self.values[expert] = Device8BitWeight(values[expert], scales[expert], block, None).weight


class StackedExperts:
    """Memory for E experts' matrices, filled while the layer is built."""

    __slots__ = ("down", "gate_up")

    def __init__(self, num_experts: int, dtype: torch.dtype) -> None:
        """`dtype` of matrices in floats."""
        self.gate_up, self.down = (ExpertMatrices(num_experts, dtype) for _ in range(2))

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Σ_k weights[t, k] · expert[chosen[t, k]](x[t]): x [T, D], chosen and weights [T, k] → [T, D]."""
        # Imported here: only CUDA builds of torch bring Triton.
        from backend.kernels.experts.kernel import run_experts

        wide, narrow = self.gate_up, self.down
        return run_experts(x, chosen, weights, (wide.values, narrow.values), (wide.scales, narrow.scales))

    def adapted(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        gate_up: Sequence[ExpertWeight],
        down: Sequence[ExpertWeight],
        rows: AdapterRows,
    ) -> Tensor:
        """The same, with the adapters that `rows` says of the experts' `gate_up` and `down`.

        Gates and ups stay in float32, so that rows without an adapter are rounded as without.
        """
        from backend.kernels.experts.kernel import add_parts, multiply, sort_pairs

        pairs, (num_tokens, top_k) = sort_pairs(chosen, len(self.down.values)), chosen.shape
        own, step = chosen.flatten(), rows.on_device
        slots = DeviceSlots(step.slots[:, None].expand(-1, top_k).flatten(), step.active)
        wide = multiply(x, self.gate_up.values, pairs, top_k, scales=self.gate_up.scales, dtype=torch.float32)
        each = x[:, None].expand(-1, top_k, -1).reshape(num_tokens * top_k, -1)
        _add_adapters(wide, each, own, gate_up, slots)
        gated = swiglu(wide).to(x.dtype)
        parts = multiply(gated, self.down.values, pairs, 1, scales=self.down.scales)
        _add_adapters(parts, gated, own, down, slots)
        return add_parts(parts, weights)


class BiasedExperts(StackedExperts):
    """The same of experts with biases, and a gate of their own; no adapter changes them."""

    __slots__ = ("down_bias", "gate", "gate_up_bias")

    def __init__(self, experts: StackedExperts, biases: Sequence[Tensor], gate: Gate) -> None:
        """`experts` without biases; `biases` of their gate_up [E, 2 I] and down [E, D]."""
        self.gate_up, self.down = experts.gate_up, experts.down
        self.gate_up_bias, self.down_bias = biases
        self.gate = gate

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The same as of its base."""
        from backend.kernels.experts.kernel import add_parts, multiply, sort_pairs

        pairs, own, top_k = sort_pairs(chosen, len(self.down.values)), chosen.flatten(), chosen.shape[1]
        wide = (
            multiply(x, self.gate_up.values, pairs, top_k, scales=self.gate_up.scales, dtype=torch.float32)
            + self.gate_up_bias[own]
        )
        gated = self.gate(wide).to(x.dtype)
        parts = (
            multiply(gated, self.down.values, pairs, 1, scales=self.down.scales, dtype=torch.float32)
            + self.down_bias[own]
        )
        return add_parts(parts, weights).to(x.dtype)


def _add_adapters(
    y: Tensor, x: Tensor, chosen: Tensor, experts: Sequence[ExpertWeight], slots: DeviceSlots
) -> None:
    """Add each expert's adapters to the pairs that chose it, y [T k, N] of x [T k, K]."""
    from backend.kernels.lora.kernel import add_adapters

    for number, expert in enumerate(experts):
        if expert.adapters is not None:
            own = torch.where(chosen == number, slots.slots, -1)
            add_adapters(y, x, expert.adapters, DeviceSlots(own, slots.active))

"""All experts of a layer in two tensors, for a GPU: grouped products need no second copy and no host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backend.kernels.lora import AdapterRows, DeviceSlots
from backend.kernels.swiglu import swiglu

if TYPE_CHECKING:
    from backend.kernels.experts import ExpertWeight, Gate


class StackedExperts:
    """Memory for E experts' matrices, filled while the layer is built."""

    __slots__ = ("down", "gate_up")

    def __init__(
        self, num_experts: int, width: int, features: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`width` I and `features` D."""
        self.gate_up = torch.empty(num_experts, 2 * width, features, dtype=dtype, device=device)
        self.down = torch.empty(num_experts, features, width, dtype=dtype, device=device)

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Σ_k weights[t, k] · expert[chosen[t, k]](x[t]): x [T, D], chosen and weights [T, k] → [T, D]."""
        # Imported here: only CUDA builds of torch bring Triton.
        from backend.kernels.experts.kernel import run_experts

        return run_experts(x, chosen, weights, self.gate_up, self.down)

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

        pairs, (num_tokens, top_k) = sort_pairs(chosen, len(self.down)), chosen.shape
        own, step = chosen.flatten(), rows.on_device
        slots = DeviceSlots(step.slots[:, None].expand(-1, top_k).flatten(), step.active)
        wide = multiply(x, self.gate_up, pairs, top_k, dtype=torch.float32)
        each = x[:, None].expand(-1, top_k, -1).reshape(num_tokens * top_k, -1)
        _add_adapters(wide, each, own, gate_up, slots)
        gated = swiglu(wide).to(x.dtype)
        parts = multiply(gated, self.down, pairs, 1)
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

        pairs, own, top_k = sort_pairs(chosen, len(self.down)), chosen.flatten(), chosen.shape[1]
        wide = multiply(x, self.gate_up, pairs, top_k, dtype=torch.float32) + self.gate_up_bias[own]
        gated = self.gate(wide).to(x.dtype)
        parts = multiply(gated, self.down, pairs, 1, dtype=torch.float32) + self.down_bias[own]
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

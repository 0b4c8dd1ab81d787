"""The dense feed-forward block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import Activation, ClampedGate, ExpertGate
from backend.kernels.lora import AdapterRows
from backend.kernels.swiglu import clamped_swiglu, gelu, swiglu
from backend.layers.linear import Linear

Gate = Callable[[Tensor], Tensor]
"""[T, 2 I], gate in the left half, or [T, I] → [T, I]."""


class MLP:
    """down(activation(gate(x)) * up(x)), gate and up in one matmul; or down(activation(up(x)))."""

    __slots__ = ("down", "gate", "gate_up")

    def __init__(
        self, gate_up: Linear, down: Linear, activation: Activation = "silu", gate: Gate | None = None
    ) -> None:
        """`gate` in place of `activation`, where it has weights; those without gate have `gate_up` [I, D]."""
        self.gate_up = gate_up
        self.gate = gate or _GATES[activation]
        self.down = down

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """[T, D] → [T, D]."""
        return self.down(self.gate(self.gate_up(x, rows)), rows)


class ScaledMLP(MLP):
    """The same, with factors of what the gate gets and of the output."""

    __slots__ = ("factor",)

    def __init__(self, gate_up: Linear, down: Linear, factors: tuple[float, float]) -> None:
        super().__init__(gate_up, down, gate=partial(scaled_swiglu, factors[0]))
        self.factor = factors[1]

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """[T, D] → [T, D]."""
        return super().__call__(x, rows).mul_(self.factor)


def gate_of(spec: ExpertGate | None) -> Gate:
    """What experts compute between their matrices."""
    if isinstance(spec, ClampedGate):
        return partial(clamped_swiglu, alpha=spec.alpha, limit=spec.limit)
    return _GATES[spec or "silu"]


def scaled_swiglu(factor: float, gate_up: Tensor) -> Tensor:
    """silu(factor · gate) · up; [T, 2 I], gate in the left half → [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return swiglu(torch.cat((gate * factor, up), dim=-1))


def geglu(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up, with gelu by tanh (arXiv:2002.05202); [T, 2 I], gate in the left half → [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu(gate).mul_(up)


def relu2(x: Tensor) -> Tensor:
    """The square of relu (arXiv:2109.08668)."""
    return F.relu(x).square_()


class XIELU:
    """x > 0: a x² + b x; else c (exp(x) - 1 - x) + b x (arXiv:2411.13010)."""

    __slots__ = ("beta", "eps", "negative", "positive")

    def __init__(self, positive: float, negative: float, beta: float, eps: float) -> None:
        """`positive` and `negative` as they are stored: a and c - b are their softplus."""
        both = F.softplus(torch.tensor([positive, negative], dtype=torch.float64)).tolist()
        self.positive, self.negative = both[0], beta + both[1]
        self.beta, self.eps = beta, eps

    def __call__(self, x: Tensor) -> Tensor:
        """[T, I] → [T, I]."""
        low = (x.clamp(max=self.eps).expm1_() - x).mul_(self.negative)
        return torch.where(x > 0, self.positive * x * x, low).add_(x, alpha=self.beta)


_GATES: dict[Activation, Gate] = {
    "silu": swiglu,
    "gelu_tanh": geglu,
    "relu2": relu2,
    "plain_gelu_tanh": gelu,
}

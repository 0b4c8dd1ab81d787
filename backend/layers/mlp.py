"""The dense feed-forward block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from backend.config import Activation, ClampedGate
from backend.kernels.lora import AdapterRows
from backend.kernels.swiglu import swiglu
from backend.layers.linear import Linear


class MLP:
    """down(activation(gate(x)) * up(x)), gate and up in one matmul."""

    __slots__ = ("down", "gate", "gate_up")

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation = "silu") -> None:
        self.gate_up = gate_up
        self.gate = swiglu if activation == "silu" else geglu
        self.down = down

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """[T, D] → [T, D]."""
        return self.down(self.gate(self.gate_up(x, rows)), rows)


def gate_of(spec: ClampedGate | Literal["gelu_tanh"] | None) -> Callable[[Tensor], Tensor]:
    """What experts compute between their matrices."""
    if spec is None:
        return swiglu
    return geglu if spec == "gelu_tanh" else partial(clamped_swiglu, spec)


def clamped_swiglu(spec: ClampedGate, gate_up: Tensor) -> Tensor:
    """The gate of `spec`; [T, 2 I], gate in the left half → [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=spec.limit), up.clamp(-spec.limit, spec.limit)
    return (gate * spec.alpha).sigmoid_().mul_(gate).mul_(up.add_(1))


def geglu(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up, with gelu by tanh (arXiv:2002.05202); [T, 2 I], gate in the left half → [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)

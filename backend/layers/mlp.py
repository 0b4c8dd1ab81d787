"""The dense feed-forward block."""

from __future__ import annotations

from torch import Tensor

from backend.kernels.lora import AdapterRows
from backend.kernels.swiglu import swiglu
from backend.layers.linear import Linear


class MLP:
    """down(silu(gate(x)) * up(x)), gate and up in one matmul."""

    __slots__ = ("down", "gate_up")

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """[T, D] → [T, D]."""
        return self.down(swiglu(self.gate_up(x, rows)), rows)

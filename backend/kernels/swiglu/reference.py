"""SwiGLU in torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """Gate the right half by the left half; a new tensor."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def sigmoid_gate(gate_up: Tensor) -> Tensor:
    """Multiply the right half by the left half's sigmoid; a new tensor."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate.sigmoid().mul_(up)

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


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """Gate by a sigmoid of alpha times the gate, all within limits; a new tensor."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * alpha).sigmoid_().mul_(gate).mul_(up.add_(1))


def gelu(x: Tensor) -> Tensor:
    """gelu by tanh; a new tensor."""
    return F.gelu(x, approximate="tanh")

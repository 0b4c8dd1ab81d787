"""Qwen3's attention (grouped queries, QK norm, rotary embedding) with an arbitrary mask.

The functions also accept the attention module of transformers, whose parameters have the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of an attention layer, named as in Qwen3's config.json."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


class AttentionParameters(Protocol):
    """The parameters that the functions below read."""

    head_dim: int
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    q_norm: nn.RMSNorm
    k_norm: nn.RMSNorm


class Attention(nn.Module):
    """Parameters only; `queries`, `keys_and_values` and `attend` compute."""

    def __init__(self, shape: AttentionShape, norm_eps: float) -> None:
        super().__init__()
        width, dim = shape.hidden_size, shape.head_dim
        self.head_dim = dim
        self.q_proj = nn.Linear(width, shape.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(width, shape.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(width, shape.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * dim, width, bias=False)
        self.q_norm = nn.RMSNorm(dim, norm_eps)
        self.k_norm = nn.RMSNorm(dim, norm_eps)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] → [..., D]."""
        y: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of the positions 0 to length - 1, each [length, head_dim]."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate [..., length, head_dim]; the halves of a head are the two coordinates, as in Llama."""
        first, second = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-second, first), dim=-1) * self.sin


def rotation(length: int, head_dim: int, theta: float, device: torch.device) -> Rotation:
    """Return the rotary embedding of positions from 0."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
    angles = torch.outer(torch.arange(length, device=device), frequencies).repeat(1, 2)
    return Rotation(angles.cos(), angles.sin())


def _heads(x: Tensor, head_dim: int) -> Tensor:
    """[rows, length, heads * head_dim] → [rows, heads, length, head_dim]."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


def queries(attention: AttentionParameters, x: Tensor, rotate: Rotation) -> Tensor:
    """[rows, length, D] → [rows, heads, length, head_dim]."""
    return rotate(attention.q_norm(_heads(attention.q_proj(x), attention.head_dim)))


def keys_and_values(attention: AttentionParameters, x: Tensor, rotate: Rotation) -> tuple[Tensor, Tensor]:
    """[rows, length, D] → twice [rows, key heads, length, head_dim]."""
    keys = rotate(attention.k_norm(_heads(attention.k_proj(x), attention.head_dim)))
    return keys, _heads(attention.v_proj(x), attention.head_dim)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, diagonals: Sequence[tuple[Tensor, Tensor]] = ()
) -> Tensor:
    """Return the attention's output [rows, length, heads * head_dim].

    mask broadcasts to [rows, heads, queries, keys]. `diagonals` are further (keys, values); a query attends
    only to the one at its own position.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    own = [[part.repeat_interleave(groups, 1) for part in pair] for pair in diagonals]
    scores = [(q @ k.mT).masked_fill(~mask, float("-inf"))]
    scores += [(q * keys).sum(-1, keepdim=True) for keys, _ in own]
    weights = (torch.cat(scores, dim=-1) * q.shape[-1] ** -0.5).softmax(dim=-1)
    mixed: Tensor = weights[..., : k.shape[2]] @ v
    for index, (_, values) in enumerate(own):
        mixed = mixed + weights[..., k.shape[2] + index].unsqueeze(-1) * values
    return mixed.transpose(1, 2).flatten(2)

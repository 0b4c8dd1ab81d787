"""A dense decoder layer for drafting: few tokens at a time, so that what counts is the number of operations.

Norms only scale; their weights lie in the matrices behind them, those of queries and keys in the rotation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.linear import WeightLayout
from backend.layers.linear import Linear
from backend.speculative.round_kv import RoundKV

Result = TypeVar("Result")


class UnitNorm:
    """x / sqrt(mean(x²) + eps), divided by `gain`: whoever multiplies next has that in its weights."""

    __slots__ = ("_eps", "_root", "_size", "gain")

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self._size, self._eps = size, eps
        # In fp32 sqrt(mean(x²) + eps) = hypot(|x|, sqrt(D eps)) / sqrt(D); the last factor is left out.
        self._root = torch.tensor(math.sqrt(size * eps), device=device) if dtype == torch.float32 else None
        self.gain = math.sqrt(size) if dtype == torch.float32 else 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] → the same shape."""
        if self._root is None:
            return F.rms_norm(x, (self._size,), None, self._eps)
        return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._root)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and in what a drafter's weights are laid out."""

    layout: WeightLayout
    dtype: torch.dtype
    device: torch.device

    def linear(self, weights: list[Tensor], biases: list[Tensor] | None = None) -> Linear:
        """Stack the weights [N_i, K] of one input."""
        placed = [weight.to(self.device, self.dtype) for weight in weights]
        return Linear(
            placed, [b.to(self.device, self.dtype) for b in biases] if biases else None, self.layout
        )

    def behind(self, norm: UnitNorm, gains: Tensor, weights: list[Tensor]) -> list[Tensor]:
        """The weights [N_i, K] with what `norm` and its weight [K] leave to them."""
        return [weight.float() * (gains.float() * norm.gain) for weight in weights]

    def norm(self, size: int, eps: float) -> UnitNorm:
        """Over the last `size` dimensions."""
        return UnitNorm(size, eps, self.dtype, self.device)

    def tensor(self, values: Tensor) -> Tensor:
        """A small tensor of its own."""
        return values.to(self.device, self.dtype, copy=True)


@dataclass(frozen=True, slots=True)
class Heads:
    """How many heads, how wide."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def num_rotated(self) -> int:
        """Queries and keys."""
        return self.num_heads + self.num_kv_heads


@dataclass(frozen=True, slots=True)
class Angles:
    """Cosines and signed sines of the tokens of a round, [tokens, 1 or queries and keys, head_dim] each."""

    cos: Tensor
    signed_sin: Tensor

    def passes(self, first: int, count: int) -> list[Angles]:
        """Those of the first tokens, then of `count` tokens at a time."""
        parts = [Angles(self.cos[:first], self.signed_sin[:first])]
        if len(self.cos) > first:
            shape = (-1, count, *self.cos.shape[1:])
            later = (x[first:].view(shape).unbind(0) for x in (self.cos, self.signed_sin))
            parts += map(Angles, *later)
        return parts


class HeadNorm:
    """The norm of queries and keys, part of it in the rotation."""

    __slots__ = ("gains", "norm", "swapped")

    def __init__(self, norm: UnitNorm, gains: Tensor) -> None:
        """`gains` [heads that rotate, head_dim]."""
        self.norm = norm
        self.gains = gains * norm.gain
        self.swapped = self.gains.roll(gains.shape[-1] // 2, -1)

    def angles(self, angles: Angles) -> Angles:
        """With the gains: (g x) cos + swap(g x) sin = x (g cos) + swap(x) (swap(g) sin)."""
        return Angles(angles.cos * self.gains, angles.signed_sin * self.swapped)


class OneTokenAttention(Protocol):
    """Computes what RoundAttention does for one token of each sequence, only faster."""

    def serves(self, num_rows: int, end: int) -> bool:
        """Whether it is faster for so many rows over so many columns."""
        ...

    def attend(self, x: Tensor, memory: Tensor, end: int, angles: Angles, mask: Tensor | None) -> Tensor:
        """x [B, D] over the first `end` columns of a RoundKV's data, the last of them its own."""
        ...


class RoundAttention:
    """Self-attention of B sequences with n tokens each, behind its norm."""

    __slots__ = ("_one_token", "head_norm", "heads", "norm", "out", "qkv")

    def __init__(
        self,
        heads: Heads,
        norm: UnitNorm,
        qkv: Linear,
        out: Linear,
        head_norm: HeadNorm | None,
        one_token: OneTokenAttention | None = None,
    ) -> None:
        self.heads, self.norm, self.qkv, self.out, self.head_norm = heads, norm, qkv, out, head_norm
        self._one_token = one_token

    def __call__(self, x: Tensor, kv: RoundKV, start: int, angles: Angles, mask: Tensor | None) -> Tensor:
        """x [B * n, D] at the columns from `start` on → what is to be added to it."""
        one_token = self._one_token
        if one_token is not None and len(x) == len(kv.data) and one_token.serves(len(x), start + 1):
            return one_token.attend(x, kv.data, start + 1, angles, mask)
        return self.mix(self.project(x, angles), kv, start, mask)

    def project(self, x: Tensor, angles: Angles) -> Tensor:
        """[T, D] → queries, keys and values of all heads, [T, heads, head_dim]."""
        shape = self.heads
        heads = self.qkv(self.norm(x)).view(x.shape[0], -1, shape.head_dim)
        rotated = heads[:, : shape.num_rotated]
        normed = rotated if self.head_norm is None else self.head_norm.norm(rotated)
        swapped = normed.roll(shape.head_dim // 2, -1)
        torch.mul(normed, angles.cos, out=rotated).addcmul_(swapped, angles.signed_sin)
        return heads

    def mix(self, heads: Tensor, kv: RoundKV, start: int, mask: Tensor | None) -> Tensor:
        """What `project` gave of [B * n] tokens at the columns from `start` on → [B * n, D]."""
        shape = self.heads
        queries, keys_values = heads.split_with_sizes((shape.num_heads, 2 * shape.num_kv_heads), dim=1)
        return self.out(attend(queries, kv, kv.put(start, keys_values), mask))


def attend(queries: Tensor, kv: RoundKV, end: int, mask: Tensor | None) -> Tensor:
    """Queries [B * n, heads, head_dim] over the first `end` columns → [B * n, heads * head_dim].

    mask [B or 1, 1, n, end] is added to the scores.
    """
    count, kv_heads, _, head_dim = kv.keys.shape
    rows, num_heads, _ = queries.shape
    keys, values = kv.keys[:, :, :end], kv.values[:, :, :end]
    if rows == count:  # queries that share keys are rows of one product
        grouped = queries.view(count, kv_heads, -1, head_dim)
        return F.scaled_dot_product_attention(grouped, keys, values, mask).reshape(rows, -1)
    many = queries.view(count, -1, num_heads, head_dim).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(many, keys, values, mask, enable_gqa=kv_heads != num_heads)
    return mixed.transpose(1, 2).reshape(rows, -1)


class RoundMLP:
    """down(silu(gate(x)) · up(x)) behind its norm."""

    __slots__ = ("down", "gate_up", "norm")

    def __init__(self, norm: UnitNorm, gate_up: Linear, down: Linear) -> None:
        self.norm, self.gate_up, self.down = norm, gate_up, down

    def __call__(self, x: Tensor) -> Tensor:
        """[T, D] → what is to be added to it."""
        gate, up = self.gate_up(self.norm(x)).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class Few(Generic[Result]):
    """A function of rows [B, D], with a faster one for few of them."""

    __slots__ = ("_any", "_few", "_most_rows")

    def __init__(
        self,
        any_rows: Callable[[Tensor], Result],
        few_rows: Callable[[Tensor], Result] | None,
        most_rows: int = 0,
    ) -> None:
        """`few_rows`: for at most so many."""
        self._any, self._few, self._most_rows = any_rows, few_rows, most_rows

    def __call__(self, x: Tensor) -> Result:
        """[B, K] → what the function says."""
        if self._few is not None and len(x) <= self._most_rows:
            return self._few(x)
        return self._any(x)

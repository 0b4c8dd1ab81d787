"""Multi-head latent attention (arXiv:2405.04434), absorbed: all heads attend to one vector per token.

A head's key is a projection of the token's latent, beside a rotated key that all heads share; its value is
another one. So the query is projected to the latent's space, and what it attended to back out of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.config import AttentionSpec, LatentSpec
from backend.kernels.device import uses_triton
from backend.kernels.linear import WeightLayout, pack
from backend.kernels.paged_attention import WindowPlan, paged_attention
from backend.kernels.rotary import rotate
from backend.layers.attention import AttentionContext
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm


class HeadProduct:
    """A matrix for each head, [H, N, K]: x [T, H, K] → [T, H, N]."""

    __slots__ = ("_parts", "_stacked")

    def __init__(self, weights: Tensor, layout: WeightLayout) -> None:
        """Other layouts than "plain" give a row the same bits in any company, but each head needs a call."""
        is_plain = layout == "plain"
        self._stacked = weights.transpose(1, 2).contiguous() if is_plain else None
        self._parts = [] if is_plain else [pack(weight.contiguous(), None, layout) for weight in weights]

    def __call__(self, x: Tensor) -> Tensor:
        """[T, H, K] → [T, H, N]."""
        if self._stacked is not None:
            return torch.bmm(x.transpose(0, 1), self._stacked).transpose(0, 1)
        heads = x.transpose(0, 1).contiguous()
        return torch.stack([part(own) for part, own in zip(self._parts, heads, strict=True)], dim=1)


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """The projections of one layer."""

    queries: tuple[Linear, RMSNorm, Linear] | Linear  # to a latent, its norm, to heads; or to heads at once
    down: Linear  # [rank + rotated_dim, D]
    norm: RMSNorm  # of the latent
    keys: HeadProduct  # of queries: [H, rank, plain_dim]
    values: HeadProduct  # of what was attended to: [H, value_dim, rank]
    out: Linear


class LatentAttention:
    """KV memory has each token's latent and rotated key, in the place of one key head without a value."""

    __slots__ = ("latent", "layer", "num_heads", "query_scale", "rope", "weights")

    def __init__(
        self, layer: int, spec: AttentionSpec, latent: LatentSpec, rope: int, weights: LatentWeights
    ) -> None:
        """`rope`: which of the context's `by_rope`."""
        assert spec.scale is not None and spec.head_dim == latent.rank + latent.rotated_dim
        self.layer = layer
        self.num_heads = spec.num_heads
        self.latent = latent
        self.rope = rope
        self.weights = weights
        self.query_scale = spec.scale * spec.head_dim**0.5

    def __call__(self, x: Tensor, context: AttentionContext) -> Tensor:
        """x [T, D] → [T, D]. Writes what the step's tokens have in KV memory of this layer."""
        latent, weights, rows = self.latent, self.weights, context.adapters
        queries = self._queries(x, context).view(len(x), self.num_heads, -1)
        sizes = [latent.rank, latent.rotated_dim]
        stored, shared = torch.split(weights.down(x, rows), sizes, dim=1)
        turned = torch.cat((queries[..., latent.plain_dim :], shared[:, None]), dim=1)
        rotate(turned, context.by_rope[self.rope])
        plain = weights.keys(queries[..., : latent.plain_dim])
        normed = weights.norm(stored.contiguous())
        heads = torch.cat((torch.cat((plain, normed[:, None]), dim=1), turned), dim=2)
        context.kv.write(self.layer, context.slots[None], heads[:, -1:])
        attended = self._attend(heads[:, :-1] * self.query_scale, context)
        return weights.out(weights.values(attended[..., : latent.rank]).flatten(1), rows)

    def _queries(self, x: Tensor, context: AttentionContext) -> Tensor:
        queries = self.weights.queries
        if isinstance(queries, Linear):
            return queries(x, context.adapters)
        down, norm, up = queries
        return up(norm(down(x, context.adapters)), context.adapters)

    def _attend(self, queries: Tensor, context: AttentionContext) -> Tensor:
        """[T, H, head_dim]; the kernel for GPUs knows neither wide heads nor keys that are values."""
        plan, kv = context.plan.by_window[None], context.kv.layers[self.layer]
        if isinstance(plan, WindowPlan) and uses_triton(queries):
            plan = plan.groups
        return paged_attention(queries, kv, plan).view(queries.shape)

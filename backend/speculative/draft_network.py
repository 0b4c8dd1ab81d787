"""A small dense model as a drafter runs it: a few tokens of some sequences at a time, over RoundKVs."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import ModelConfig
from backend.kv.storage import KVLayout
from backend.layers.linear import Linear
from backend.layers.rope import Rope
from backend.speculative.dense_weights import DenseLayer, DenseReader, Projection
from backend.speculative.round_kv import RoundKV
from backend.speculative.round_layer import (
    Angles,
    HeadNorm,
    Heads,
    Placement,
    RoundAttention,
    RoundMLP,
    UnitNorm,
)


@dataclass(frozen=True, slots=True)
class DraftNetwork:
    """Weights and arithmetic; holds no state of any sequence."""

    config: ModelConfig
    embedding: Tensor  # [vocabulary, D]
    rope: Rope
    layers: list[tuple[RoundAttention, RoundMLP]]
    norm: UnitNorm
    head: Linear  # with the final norm's weight
    kv_layout: KVLayout

    def angles(self, positions: Tensor, longest: int) -> list[Angles]:
        """By layer, of the tokens at `positions` [T], all below `longest`."""
        cos, signed_sin = self.rope(positions, longest)
        plain = Angles(cos, signed_sin)
        return [
            plain if attention.head_norm is None else attention.head_norm.angles(plain)
            for attention, _ in self.layers
        ]

    def forward(
        self, token_ids: Tensor, kv: list[RoundKV], start: int, angles: Items[Angles], mask: Tensor | None
    ) -> Tensor:
        """Compute tokens [B * n] at the columns from `start` on; returns the residual stream [B * n, D]."""
        x = F.embedding(token_ids, self.embedding)
        for (attention, mlp), own, turned in zip(self.layers, kv, angles, strict=True):
            x += attention(x, own, start, turned, mask)
            x += mlp(x)
        return x

    def best(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest next token of each row [B, D], and how likely it is; [B] both."""
        likely, tokens = self.head(self.norm(hidden)).softmax(dim=-1, dtype=torch.float32).max(dim=-1)
        return tokens, likely


def build_network(weights: DenseReader, placement: Placement, kv_dtype: torch.dtype) -> DraftNetwork:
    """Lay the weights out for torch."""
    model = weights.model
    head, norm = weights.head(), placement.norm(model.hidden_size, model.rms_norm_eps)
    return DraftNetwork(
        config=model,
        embedding=placement.tensor(weights.embedding()),
        rope=Rope(model.rope, model.head_dim, placement.dtype, placement.device),
        layers=[_layer(model, layer, placement) for layer in weights.layers()],
        norm=norm,
        head=_linear(head, placement, norm),
        kv_layout=KVLayout(model.num_layers, model.num_kv_heads, model.head_dim, kv_dtype, placement.device),
    )


def _layer(model: ModelConfig, layer: DenseLayer, place: Placement) -> tuple[RoundAttention, RoundMLP]:
    norm = place.norm(model.hidden_size, model.rms_norm_eps)
    part, head_norm = layer.attention, None
    if part.head_gains is not None:
        head_norm = HeadNorm(place.norm(model.head_dim, model.rms_norm_eps), place.tensor(part.head_gains))
    attention = RoundAttention(
        Heads(model.num_heads, model.num_kv_heads, model.head_dim),
        norm,
        _linear(part.qkv, place, norm),
        _linear(part.out, place),
        head_norm,
    )
    return attention, RoundMLP(norm, _linear(layer.gate_up, place, norm), _linear(layer.down, place))


def _linear(projection: Projection, place: Placement, norm: UnitNorm | None = None) -> Linear:
    """Behind `norm`, whose weight goes into the matrices."""
    weights = projection.weights
    if norm is not None and projection.gains is not None:
        weights = place.behind(norm, projection.gains, weights)
    return place.linear(weights, projection.biases)

"""A Mixture-of-Attentions head (arXiv 2410.03804): its arithmetic. Format: pico/drafters/README.md."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.rotary import rotate
from backend.kv.storage import KVLayout
from backend.layers.linear import Linear
from backend.layers.rope import Rope
from backend.models.decoder import Decoder, DecoderLayer
from backend.speculative.round_kv import RoundKV
from backend.speculative.round_layer import Angles, Few, HeadNorm, RoundAttention, UnitNorm, attend
from backend.speculative.target_parts import Guess, run_layer

SELF, CROSS = 0, 1
"""Layers of its own KV memory: self-attention, and memory of what the target thought."""


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Attention between the streams behind the layers of one position, and their mean."""

    num_heads: int
    head_dim: int
    stream_norm: UnitNorm
    gains: Tensor  # [D]: of `stream_norm`
    layer_embed: Tensor  # [layers, D]
    qkv: Linear
    qk_norm: UnitNorm
    qk_gains: Tensor  # [2 * heads, head_dim]
    out: Linear

    def __call__(self, streams: Tensor) -> Tensor:
        """[T, layers, D] → [T, D]."""
        count, layers, width = streams.shape
        x = torch.addcmul(self.layer_embed, self.stream_norm(streams), self.gains)
        heads = self.qkv(x.view(-1, width)).view(count, layers, 3 * self.num_heads, self.head_dim)
        queries_keys = self.qk_norm(heads[:, :, : 2 * self.num_heads]) * self.qk_gains
        queries, keys = queries_keys.transpose(1, 2).chunk(2, dim=1)
        values = heads[:, :, 2 * self.num_heads :].transpose(1, 2)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        # The mean of what layers get is what their mean gets.
        return x.mean(dim=1).add_(self.out(mixed.mean(dim=2).view(count, -1)))


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Queries of drafted tokens over the memory of verified ones."""

    memory_norm: UnitNorm
    keys_values: Linear
    key_norm: HeadNorm
    norm: UnitNorm
    queries: Linear
    query_norm: HeadNorm
    out: Linear

    def remember(self, memory: Tensor, angles: Angles) -> Tensor:
        """Memory [T, D] → keys and values [T, 2 * kv_heads, head_dim]."""
        kv_heads, head_dim = self.key_norm.gains.shape
        found = self.keys_values(self.memory_norm(memory)).view(len(memory), -1, head_dim)
        keys = found[:, :kv_heads]
        turn(self.key_norm, keys, angles, out=keys)
        return found

    def __call__(self, x: Tensor, kv: RoundKV, num_known: int, angles: Angles, mask: Tensor | None) -> Tensor:
        """X [B, D] → what is to be added to it."""
        queries = self.queries(self.norm(x)).view(len(x), *self.query_norm.gains.shape)
        turn(self.query_norm, queries, angles, out=queries)
        return self.out(attend(queries, kv, num_known, mask))


@dataclass(frozen=True, slots=True)
class MixtureNetwork:
    """Holds no state of any sequence."""

    embedded: Tensor  # [vocabulary, D]: normed
    self_attention: RoundAttention
    layer_attention: LayerAttention
    cross: CrossAttention
    closing: Few[Tensor]
    rope: Rope
    target: Decoder
    target_layers: list[DecoderLayer]
    guess: Guess  # by the target's head
    kv_layout: KVLayout

    def own_angles(self, positions: Tensor, longest: int) -> Angles:
        """Of the head's own attentions."""
        return Angles(*self.rope(positions, longest))

    def target_angles(self, positions: Tensor, longest: int) -> Angles:
        """Of the target's last layers."""
        return Angles(*self.target.rope(positions, longest))

    def remember(
        self, token_ids: Tensor, positions: Tensor, longest: int, streams: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of both attentions at verified positions; streams [T, layers, D]."""
        angles = self.own_angles(positions, longest)
        attention = self.self_attention
        heads = attention.project(F.embedding(token_ids, self.embedded), _with_gains(attention, angles))
        memory = self.layer_attention(streams)
        return heads[:, attention.heads.num_heads :], self.cross.remember(memory, angles)

    def enter(
        self,
        token_ids: Tensor,
        kv: list[RoundKV],
        num_known: int,
        column: int,
        angles: Angles,
        mask: Tensor | None,
    ) -> Tensor:
        """Tokens [B] at `column` → the stream that enters the target's last layers."""
        x = F.embedding(token_ids, self.embedded)
        attention = self.self_attention
        x += attention(x, kv[SELF], column, _with_gains(attention, angles), mask)
        x += self.cross(x, kv[CROSS], num_known, angles, None if mask is None else mask[..., :num_known])
        return self.closing(x)

    def finish(
        self, x: Tensor, kv: list[RoundKV], column: int, angles: Angles, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the target's last layers over the stream [B, D]; the likeliest tokens, and how likely."""
        for layer, own in zip(self.target_layers, kv, strict=True):
            x = run_layer(layer, x, own, column, angles, mask)
        return self.guess(x)


def turn(norm: HeadNorm, heads: Tensor, angles: Angles, out: Tensor) -> None:
    """Normalise and rotate [T, heads, head_dim]."""
    rotate(norm.norm(heads) * norm.gains, angles.cos, angles.signed_sin, out=out)


def _with_gains(attention: RoundAttention, angles: Angles) -> Angles:
    assert attention.head_norm is not None, "every head normalises queries and keys"
    return attention.head_norm.angles(angles)

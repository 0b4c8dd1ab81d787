"""A Mixture-of-Attentions head (arXiv 2410.03804): its arithmetic. Format: pico/drafters/README.md."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.errors import CheckpointError
from backend.kernels.rotary import rotate
from backend.kv.storage import KVLayout
from backend.layers.linear import Linear
from backend.layers.rope import Rope
from backend.models import LoadedModel
from backend.models.decoder import Decoder
from backend.models.weights import WeightReader
from backend.speculative.compiled_layer import CompiledAttention, Norm, most_mixed
from backend.speculative.heads import HeadReader, LayerShape, read_shape
from backend.speculative.round_kv import RoundKV
from backend.speculative.round_layer import Angles, Few, HeadNorm, RoundAttention, UnitNorm, attend
from backend.speculative.target_parts import Guess, TargetLayer, target_guess

SELF, CROSS = 0, 1
"""Layers of its own KV memory: self-attention, and memory of what the target thought."""


class MixtureShape(LayerShape, frozen=True):
    """Its config.json."""

    num_target_layers: int
    layer_attention_heads: int
    target_layers: int


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
    one_token: CompiledAttention | None

    def remember(self, memory: Tensor, angles: Angles) -> Tensor:
        """Memory [T, D] → keys and values [T, 2 * kv_heads, head_dim]."""
        kv_heads, head_dim = self.key_norm.gains.shape
        found = self.keys_values(self.memory_norm(memory)).view(len(memory), -1, head_dim)
        keys = found[:, :kv_heads]
        turn(self.key_norm, keys, angles, out=keys)
        return found

    def __call__(self, x: Tensor, kv: RoundKV, num_known: int, angles: Angles, mask: Tensor | None) -> Tensor:
        """X [B, D] → what is to be added to it."""
        if self.one_token is not None and self.one_token.serves(len(x), num_known):
            return self.one_token.attend(x, kv.data, num_known, self.query_norm.angles(angles), mask)
        queries = self.queries(self.norm(x)).view(len(x), *self.query_norm.gains.shape)
        turn(self.query_norm, queries, angles, out=queries)
        return self.out(attend(queries, kv, num_known, mask))


@dataclass(frozen=True, slots=True)
class MixtureNetwork:
    """Holds no state of any sequence."""

    embedded: Tensor  # [vocabulary, D]: normed
    self_attention: RoundAttention
    layer_attention: Few[Tensor]  # streams [T, layers, D] → [T, D]
    cross: CrossAttention
    closing: Few[Tensor]
    rope: Rope
    target: Decoder
    target_layers: list[TargetLayer]
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
            x = layer(x, own, column, angles, mask)
        return self.guess(x)


def turn(norm: HeadNorm, heads: Tensor, angles: Angles, out: Tensor) -> None:
    """Normalise and rotate [T, heads, head_dim]."""
    rotate(norm.norm(heads) * norm.gains, angles.cos, angles.signed_sin, out=out)


def _with_gains(attention: RoundAttention, angles: Angles) -> Angles:
    assert attention.head_norm is not None, "every head normalises queries and keys"
    return attention.head_norm.angles(angles)


def load_mixture(folder: str, model: LoadedModel, max_model_tokens: int) -> MixtureNetwork:
    """The head in `folder` on this target. Raises CheckpointError."""
    shape = read_shape(folder, MixtureShape, model)
    _check(folder, shape, model, max_model_tokens)
    width, eps = shape.hidden_size, shape.rms_norm_eps
    decoder, precision, num_layers = model.decoder, model.precision, model.config.num_layers
    last_layers = range(num_layers - shape.target_layers, num_layers)
    with torch.inference_mode(), WeightReader(folder) as reader:
        head = HeadReader(reader, model)
        place = head.place
        embed_norm = place.norm(width, eps)
        gains = place.tensor(head.tensor("embed_norm.weight", width) * embed_norm.gain)
        return MixtureNetwork(
            embedded=embed_norm(decoder.embedding.weight.to(precision.compute)) * gains,
            self_attention=head.attention(shape, "self_attn", "input_layernorm"),
            layer_attention=_layer_attention(head, shape),
            cross=_cross_attention(head, shape),
            closing=head.closing(shape, "post_attention_layernorm", "output_norm"),
            rope=head.rope(shape),
            target=decoder,
            target_layers=[TargetLayer(model, number, place) for number in last_layers],
            guess=target_guess(model, place, is_normed=False),
            kv_layout=KVLayout(2, shape.num_key_value_heads, shape.head_dim, precision.kv, precision.device),
        )


def _check(folder: str, shape: MixtureShape, model: LoadedModel, max_model_tokens: int) -> None:
    layers = model.config.num_layers
    if shape.num_target_layers != layers or not 0 <= shape.target_layers < layers:
        raise CheckpointError(
            f"{folder} reads {shape.num_target_layers} layers of its target and runs the last "
            f"{shape.target_layers}, but the target has {layers}; give the head that was trained for it"
        )
    windows = model.config.windows[layers - shape.target_layers :]
    if any(window is not None and window < max_model_tokens for window in windows):
        raise CheckpointError(
            f"{folder} runs the target's last layers, which have a sliding window of "
            f"{min(filter(None, windows))} tokens; lower max_model_tokens, or choose another drafter"
        )


def _layer_attention(head: HeadReader, shape: MixtureShape) -> Few[Tensor]:
    width, dim, count = shape.hidden_size, shape.head_dim, shape.layer_attention_heads
    prefix, place, eps = "layer_attention", head.place, shape.rms_norm_eps
    stream_norm, qk_norm = place.norm(width, eps), place.norm(dim, eps)
    gains = head.tensor(f"{prefix}.stream_norm.weight", width)
    embed = head.tensor(f"{prefix}.layer_embed", shape.num_target_layers, width)
    qk = [head.tensor(f"{prefix}.attention.{part}_norm.weight", dim).expand(count, -1) for part in "qk"]
    qkv = [head.tensor(f"{prefix}.attention.{part}_proj.weight", count * dim, width) for part in "qkv"]
    out = head.tensor(f"{prefix}.attention.o_proj.weight", width, count * dim)
    by_torch = LayerAttention(
        num_heads=count,
        head_dim=dim,
        stream_norm=stream_norm,
        gains=place.tensor(gains * stream_norm.gain),
        layer_embed=place.tensor(embed),
        qkv=place.linear(qkv),
        qk_norm=qk_norm,
        qk_gains=place.tensor(torch.cat(qk) * qk_norm.gain),
        out=place.linear([out]),
    )
    compiled = head.layer_mix(Norm(gains, eps), embed, qkv, out, Norm(torch.stack(qk), eps))
    return Few(by_torch, compiled, most_mixed())


def _cross_attention(head: HeadReader, shape: MixtureShape) -> CrossAttention:
    width, heads, eps, place = shape.hidden_size, shape.heads, shape.rms_norm_eps, head.place
    queries, keys = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    memory_norm, norm = place.norm(width, eps), place.norm(width, eps)
    kv = [head.tensor(f"cross_attn.{part}_proj.weight", keys, width) for part in "kv"]
    q = head.tensor("cross_attn.q_proj.weight", queries, width)
    out = head.tensor("cross_attn.o_proj.weight", width, queries)
    by_memory = head.tensor("layer_attention.output_norm.weight", width)
    by_token = head.tensor("cross_attn_layernorm.weight", width)
    return CrossAttention(
        memory_norm=memory_norm,
        keys_values=place.linear(place.behind(memory_norm, by_memory, kv)),
        key_norm=head.head_norm(eps, [("cross_attn.k_norm.weight", heads.num_kv_heads)], heads.head_dim),
        norm=norm,
        queries=place.linear(place.behind(norm, by_token, [q])),
        query_norm=head.head_norm(eps, [("cross_attn.q_norm.weight", heads.num_heads)], heads.head_dim),
        out=place.linear([out]),
        one_token=head.one_token(heads, Norm(by_token, eps), q, out),
    )

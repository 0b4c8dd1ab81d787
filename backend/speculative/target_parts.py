"""Parts of the target that heads compute themselves, for one token of each sequence.

Where a call of the compiled ones is faster their weights are read once more, and laid out for that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from backend.kernels.rotary import rotate
from backend.layers.attention import Attention
from backend.models import LoadedModel
from backend.models.decoder import DecoderLayer
from backend.models.registry import FAMILIES
from backend.models.weights import WeightReader
from backend.speculative.compiled_layer import CompiledAttention, CompiledHead, Norm, compiles, most_rows
from backend.speculative.dense_weights import AttentionPart, DenseReader
from backend.speculative.round_kv import RoundKV
from backend.speculative.round_layer import Angles, Few, HeadNorm, Heads, Placement, attend

Guess = Callable[[Tensor], tuple[Tensor, Tensor]]
"""States [B, D] → the likeliest token by each, and how likely it is; [B] both."""


class TargetLayer:
    """One of the target's layers over the columns of a round."""

    __slots__ = ("_head_norm", "_layer", "_one_token")

    def __init__(self, model: LoadedModel, number: int, place: Placement) -> None:
        """`number`: of the layer."""
        self._layer: DecoderLayer = model.decoder.layers[number]
        self._one_token, self._head_norm = _one_token(model, number, place)

    def __call__(self, x: Tensor, kv: RoundKV, column: int, angles: Angles, mask: Tensor | None) -> Tensor:
        """x [B, D] at `column` → what leaves the layer; `x` changes."""
        layer = self._layer
        if self._one_token is not None and self._one_token.serves(len(x), column + 1):
            own = angles if self._head_norm is None else self._head_norm.angles(angles)
            x += self._one_token.attend(x, kv.data, column + 1, own, mask)
        else:
            x += _attended(layer.attention, layer.attention_norm(x), kv, column, angles, mask)
        x += layer.feed_forward(layer.mlp_norm(x))
        return x


def target_guess(model: LoadedModel, place: Placement, *, is_normed: bool) -> Guess:
    """The target's head, behind its last norm unless states were normed before."""
    decoder, config = model.decoder, model.config

    def by_torch(states: Tensor) -> tuple[Tensor, Tensor]:
        logits = decoder.head(states if is_normed else decoder.final_norm(states))
        likely, tokens = logits.softmax(dim=-1, dtype=torch.float32).max(dim=-1)
        return tokens, likely

    if not compiles(place.device, place.dtype, config.vocab_size * config.hidden_size):
        return by_torch
    with WeightReader(config.checkpoint) as reader:
        head = DenseReader(config, FAMILIES[config.architecture], reader).head()
        norm = None if is_normed else _norm(model, head.gains)
        return Few(by_torch, CompiledHead(norm, head.weights[0]), most_rows())


def _one_token(
    model: LoadedModel, number: int, place: Placement
) -> tuple[CompiledAttention | None, HeadNorm | None]:
    """A layer's attention, compiled, and the norm of its heads; None where torch is to compute it."""
    config = model.config
    heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
    rows = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    is_small = compiles(place.device, place.dtype, rows * config.hidden_size)
    if config.qkv_bias or config.o_bias or not is_small:
        return None, None
    with WeightReader(config.checkpoint) as reader:
        part: AttentionPart = DenseReader(config, FAMILIES[config.architecture], reader).attention(number)
        head_norm, head_eps = None, None
        if part.head_gains is not None:
            head_eps = config.rms_norm_eps
            head_norm = HeadNorm(place.norm(heads.head_dim, head_eps), place.tensor(part.head_gains))
        matrix, norm = torch.cat(part.qkv.weights), _norm(model, part.qkv.gains)
        return CompiledAttention(heads, norm, matrix, part.out.weights[0], head_eps), head_norm


def _norm(model: LoadedModel, gains: Tensor | None) -> Norm:
    assert gains is not None
    return Norm(gains, model.config.rms_norm_eps)


def _attended(
    attention: Attention, x: Tensor, kv: RoundKV, column: int, angles: Angles, mask: Tensor | None
) -> Tensor:
    """One of the target's attentions, with keys and values of drafted tokens in the round's."""
    shape = attention.shape
    heads = attention.qkv(x).view(len(x), -1, shape.head_dim)
    rotated = heads[:, : shape.num_heads + shape.num_kv_heads]
    normed = rotated if attention.qk_norm is None else attention.qk_norm(rotated)
    rotate(normed, angles.cos, angles.signed_sin, out=rotated)
    queries, keys_values = heads.split_with_sizes((shape.num_heads, 2 * shape.num_kv_heads), dim=1)
    return attention.out(attend(queries, kv, kv.put(column, keys_values), mask))

"""Parts of the target that heads compute themselves, for one token of each sequence.

Where a compiled call is faster the weights are read once more, and laid out for that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from backend.kernels.rotary import rotate
from backend.kernels.round_layer import ProjectionWeights
from backend.layers.attention import Attention
from backend.models import LoadedModel
from backend.models.decoder import DecoderLayer
from backend.models.families import FAMILIES
from backend.models.weights import WeightReader
from backend.speculative.compiled_layer import CompiledHead, Norm, compiles, most_rows, projection_weights
from backend.speculative.dense_weights import DenseReader
from backend.speculative.round_kv import RoundKV
from backend.speculative.round_layer import Angles, Few, Placement, attend

Guess = Callable[[Tensor], tuple[Tensor, Tensor]]
"""States [B, D] → the likeliest token by each, and how likely it is; [B] both."""


def run_layer(
    layer: DecoderLayer, x: Tensor, kv: RoundKV, column: int, angles: Angles, mask: Tensor | None
) -> Tensor:
    """One of the target's layers over x [B, D] at `column` → what leaves it; `x` changes."""
    x += _attended(layer.attention, layer.attention_norm(x), kv, column, angles, mask)
    x += layer.feed_forward(layer.mlp_norm(x))
    return x


def target_guess(model: LoadedModel, place: Placement, *, is_normed: bool) -> Guess:
    """The target's head, behind its last norm unless states were normed before."""
    by_torch = torch_guess(model, is_normed=is_normed)
    weights = guess_weights(model, place, is_normed=is_normed)
    if weights is None:
        return by_torch
    return Few(by_torch, CompiledHead(weights, model.config.vocab_size), most_rows())


def torch_guess(model: LoadedModel, *, is_normed: bool) -> Guess:
    """The same by torch alone."""
    decoder = model.decoder

    def by_torch(states: Tensor) -> tuple[Tensor, Tensor]:
        logits = decoder.head(states if is_normed else decoder.final_norm(states))
        likely, tokens = logits.softmax(dim=-1, dtype=torch.float32).max(dim=-1)
        return tokens, likely

    return by_torch


def guess_weights(model: LoadedModel, place: Placement, *, is_normed: bool) -> ProjectionWeights | None:
    """The same for compiled loops; None where torch is to compute it."""
    config = model.config
    if not compiles(place.device, place.dtype, config.vocab_size * config.hidden_size):
        return None
    with WeightReader(config.checkpoint) as reader:
        head = DenseReader(config, FAMILIES[config.architecture].names, reader).head()
        assert head.gains is not None
        norm = None if is_normed else Norm(head.gains, config.rms_norm_eps)
        return projection_weights(norm, head.weights[0])


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

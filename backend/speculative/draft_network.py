"""A small dense model as a drafter runs it: a few tokens of some sequences at a time, over RoundKVs."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import EngineConfig, ModelConfig
from backend.errors import CheckpointError
from backend.kv.storage import KVLayout
from backend.layers.linear import Linear
from backend.layers.rope import Rope
from backend.models.names import WeightNames
from backend.models.precision import choose_precision
from backend.models.registry import FAMILIES
from backend.models.weights import WeightReader
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

_SMALL_MODEL = 1 << 26
"""Elements of the matrices of a model that is kept in float32 rather than in 16 bits on a CPU."""


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


def load_network(config: EngineConfig, folder: str, max_model_tokens: int) -> DraftNetwork:
    """The dense model in `folder`, for a target configured by `config`. Raises CheckpointError."""
    model = ModelConfig.from_checkpoint(folder)
    if model.moe is not None:
        raise CheckpointError(f"{folder} is a mixture of experts; choose a dense model to draft with")
    if any(window is not None and window < max_model_tokens for window in model.windows):
        raise CheckpointError(
            f"{folder} has a sliding window of {min(filter(None, model.windows))} tokens; choose a model "
            "without one to draft with, or lower max_model_tokens"
        )
    names = FAMILIES[model.architecture]
    with torch.inference_mode(), WeightReader(folder) as reader:
        precision = choose_precision(config, model, reader.dtype(names.embedding))
        layout = precision.weights
        if layout == "half" and _num_elements(model) <= _SMALL_MODEL:
            layout = "packed"
        placement = Placement(layout, precision.compute, precision.device)
        return _Reader(model, names, reader, placement).network(precision.kv)


@dataclass(frozen=True, slots=True)
class _Reader:
    model: ModelConfig
    names: WeightNames
    reader: WeightReader
    place: Placement

    def network(self, kv_dtype: torch.dtype) -> DraftNetwork:
        model, names, place = self.model, self.names, self.place
        table = (model.vocab_size, model.hidden_size)
        embedding = self.reader.get(names.embedding, table)
        head = embedding if model.tie_word_embeddings else self.reader.get(names.head, table)
        norm = place.norm(model.hidden_size, model.rms_norm_eps)
        final = self.reader.get(names.final_norm, (model.hidden_size,))
        return DraftNetwork(
            config=model,
            embedding=place.tensor(embedding),
            rope=Rope(model.rope, model.head_dim, place.dtype, place.device),
            layers=[self._layer(names.layer.format(layer=layer)) for layer in range(model.num_layers)],
            norm=norm,
            head=place.linear(place.behind(norm, final, [head])),
            kv_layout=KVLayout(model.num_layers, model.num_kv_heads, model.head_dim, kv_dtype, place.device),
        )

    def _layer(self, prefix: str) -> tuple[RoundAttention, RoundMLP]:
        model, names, place = self.model, self.names, self.place
        width, dim = model.hidden_size, model.head_dim
        queries, keys = model.num_heads * dim, model.num_kv_heads * dim
        norm = place.norm(width, model.rms_norm_eps)
        stacked = [(names.query, queries), (names.key, keys), (names.value, keys)]
        qkv = [self.reader.get(prefix + name, (rows, width)) for name, rows in stacked]
        attention = RoundAttention(
            Heads(model.num_heads, model.num_kv_heads, dim),
            norm,
            place.linear(
                place.behind(norm, self._vector(prefix + names.attention_norm, width), qkv),
                [self._bias(prefix + name, rows) for name, rows in stacked] if model.qkv_bias else None,
            ),
            self._linear(prefix + names.out, width, queries, has_bias=model.o_bias),
            self._head_norm(prefix) if model.qk_norm else None,
        )
        return attention, self._mlp(prefix)

    def _mlp(self, prefix: str) -> RoundMLP:
        model, names, place = self.model, self.names, self.place
        narrow, wide = model.hidden_size, model.intermediate_size
        norm = place.norm(narrow, model.rms_norm_eps)
        stacked = [prefix + names.gate, prefix + names.up]
        gate_up = [self.reader.get(name, (wide, narrow)) for name in stacked]
        return RoundMLP(
            norm,
            place.linear(
                place.behind(norm, self._vector(prefix + names.mlp_norm, narrow), gate_up),
                [self._bias(name, wide) for name in stacked] if model.mlp_bias else None,
            ),
            self._linear(prefix + names.down, narrow, wide, has_bias=model.mlp_bias),
        )

    def _head_norm(self, prefix: str) -> HeadNorm:
        model, names, place = self.model, self.names, self.place
        query = self._vector(prefix + names.query_norm, model.head_dim)
        key = self._vector(prefix + names.key_norm, model.head_dim)
        gains = torch.cat((query.expand(model.num_heads, -1), key.expand(model.num_kv_heads, -1)))
        return HeadNorm(place.norm(model.head_dim, model.rms_norm_eps), place.tensor(gains))

    def _linear(self, name: str, rows: int, columns: int, *, has_bias: bool) -> Linear:
        biases = [self._bias(name, rows)] if has_bias else None
        return self.place.linear([self.reader.get(name, (rows, columns))], biases)

    def _bias(self, weight: str, rows: int) -> Tensor:
        return self._vector(weight.removesuffix("weight") + "bias", rows)

    def _vector(self, name: str, size: int) -> Tensor:
        return self.reader.get(name, (size,))


def _num_elements(model: ModelConfig) -> int:
    heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
    layer = model.hidden_size * (heads + 3 * model.intermediate_size)
    return 2 * model.vocab_size * model.hidden_size + model.num_layers * layer

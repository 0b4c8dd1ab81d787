"""The weights of a dense draft model as its checkpoint has them, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.config import ModelConfig
from backend.models.names import WeightNames
from backend.models.weights import WeightReader


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices [N_i, K] of one input, their biases [N_i], and the weight [K] of the norm before them."""

    weights: list[Tensor]
    biases: list[Tensor] | None
    gains: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """One layer's attention."""

    qkv: Projection
    out: Projection
    head_gains: Tensor | None  # [heads + kv_heads, head_dim], where queries and keys are normed


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """One decoder layer."""

    attention: AttentionPart
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class DenseReader:
    """Reads what a family names; a missing or misshapen tensor raises CheckpointError."""

    model: ModelConfig
    names: WeightNames
    reader: WeightReader

    def embedding(self) -> Tensor:
        """[vocabulary, D]."""
        return self.reader.get(self.names.embedding, (self.model.vocab_size, self.model.hidden_size))

    def head(self) -> Projection:
        """[vocabulary, D], behind the last norm."""
        model, names = self.model, self.names
        name = names.embedding if model.tie_word_embeddings else names.head
        weight = self.reader.get(name, (model.vocab_size, model.hidden_size))
        return Projection([weight], None, self.reader.get(names.final_norm, (model.hidden_size,)))

    def layers(self) -> list[DenseLayer]:
        """From the first to the last."""
        return [self._layer(layer) for layer in range(self.model.num_layers)]

    def _attention(self, layer: int) -> AttentionPart:
        model, names = self.model, self.names
        prefix = names.layer.format(layer=layer)
        queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        qkv, width = {names.query: queries, names.key: keys, names.value: keys}, model.hidden_size
        norm = prefix + names.attention_norm
        return AttentionPart(
            qkv=self._projection(prefix, qkv, width, norm, has_bias=model.qkv_bias),
            out=self._projection(prefix, {names.out: width}, queries, has_bias=model.o_bias),
            head_gains=self._head_gains(prefix) if model.qk_norm else None,
        )

    def _layer(self, layer: int) -> DenseLayer:
        model, names = self.model, self.names
        prefix = names.layer.format(layer=layer)
        width, wide, norm = model.hidden_size, model.intermediate_size, prefix + names.mlp_norm
        gate_up = {names.gate: wide, names.up: wide}
        return DenseLayer(
            attention=self._attention(layer),
            gate_up=self._projection(prefix, gate_up, width, norm, has_bias=model.mlp_bias),
            down=self._projection(prefix, {names.down: width}, wide, has_bias=model.mlp_bias),
        )

    def _projection(
        self, prefix: str, rows: dict[str, int], columns: int, norm: str | None = None, *, has_bias: bool
    ) -> Projection:
        get, named = self.reader.get, [(prefix + name, count) for name, count in rows.items()]
        return Projection(
            weights=[get(name, (count, columns)) for name, count in named],
            biases=[get(name.removesuffix("weight") + "bias", (count,)) for name, count in named]
            if has_bias
            else None,
            gains=get(norm, (columns,)) if norm else None,
        )

    def _head_gains(self, prefix: str) -> Tensor:
        model, names = self.model, self.names
        query = self.reader.get(prefix + names.query_norm, (model.head_dim,))
        key = self.reader.get(prefix + names.key_norm, (model.head_dim,))
        return torch.cat((query.expand(model.num_heads, -1), key.expand(model.num_kv_heads, -1)))

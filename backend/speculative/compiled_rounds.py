"""A small draft model on a CPU: a round is one call of the compiled loop, whatever the number of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.config import ModelConfig
from backend.kernels.greedy_chain import ChainRows, ChainWeights, Floats, greedy_chain
from backend.kernels.tiles import TiledWeights, in_tiles, padded
from backend.kv.storage import KVLayout
from backend.layers.rope import Rope
from backend.speculative.dense_weights import DenseReader, Projection
from backend.speculative.draft_rounds import DraftRounds
from backend.speculative.round_kv import page_table
from backend.types import PAGE_TOKENS, Sequence

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A draft model that is computed in float32 by backend/kernels/greedy_chain."""

    weights: ChainWeights
    kv_layout: KVLayout

    @property
    def page_bytes(self) -> int:
        """Of its keys and values."""
        return self.kv_layout.page_bytes

    def open(self, num_pages: int) -> DraftRounds:
        """With memory of its own."""
        return CompiledRounds(self, num_pages)


class CompiledRounds:
    """See DraftRounds."""

    def __init__(self, model: CompiledModel, num_pages: int) -> None:
        layout = model.kv_layout
        shape = (num_pages, PAGE_TOKENS, 2, layout.num_kv_heads, layout.head_dim)
        self._weights = model.weights
        # As in KVStorage: written at once, so that it does not come in only while requests run.
        self._memory: Floats = torch.zeros(layout.num_layers, *shape).numpy()
        self._warm_up()

    @property
    def max_position_tokens(self) -> int:
        """See DraftRounds."""
        return len(self._weights.cos)

    def compute(
        self, owns: list[Sequence], begins: list[int], num_tokens: int, least_reached: float
    ) -> list[list[int]]:
        """See DraftRounds."""
        known = [own.num_computed_tokens for own in owns]
        ends = [start + count for start, count in zip(known, begins, strict=True)]
        ids = [
            id_ for own, start, end in zip(owns, known, ends, strict=True) for id_ in own.tokens[start:end]
        ]
        rows = ChainRows(
            token_ids=np.array(ids),
            num_new=np.array(begins),
            num_known=np.array(known),
            pages=page_table([own.pages for own in owns], max(ends) + max(0, num_tokens - 1)),
        )
        return greedy_chain(self._weights, self._memory, rows, num_tokens, least_reached)

    def _warm_up(self) -> None:
        """Compile now, or read what was compiled before: seconds that no request is to wait for."""
        first = ChainRows(
            np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
        )
        greedy_chain(self._weights, self._memory, first, 1, 0.0)
        self._memory[:, 0] = 0.0


def compile_model(weights: DenseReader, max_model_tokens: int) -> CompiledModel:
    """Lay the weights out for the loop, for sequences of at most so many tokens."""
    model = weights.model
    positions = torch.arange(min(model.max_position_tokens, max_model_tokens))
    cos, signed_sin = Rope(model.rope, model.head_dim, torch.float32, CPU)(positions, len(positions))
    layers, head = weights.layers(), weights.head()
    qkv, qkv_bias = _stacked([layer.attention.qkv for layer in layers])
    out, out_bias = _stacked([layer.attention.out for layer in layers])
    gate_up, gate_up_bias = _stacked([layer.gate_up for layer in layers])
    down, down_bias = _stacked([layer.down for layer in layers])
    head_tiles, head_bias = _stacked([head])
    chain = ChainWeights(
        embedding=_array(weights.embedding()),
        final_norm=_array(_gains(head)),
        head=head_tiles,
        head_bias=head_bias,
        cos=_array(cos[:, 0]),
        signed_sin=_array(signed_sin[:, 0]),
        attention_norm=_array(torch.stack([_gains(layer.attention.qkv) for layer in layers])),
        qkv=qkv,
        qkv_bias=qkv_bias,
        gains=_array(torch.stack([_head_gains(model, layer.attention.head_gains) for layer in layers])),
        out=out,
        out_bias=out_bias,
        mlp_norm=_array(torch.stack([_gains(layer.gate_up) for layer in layers])),
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=down,
        down_bias=down_bias,
        eps=np.float32(model.rms_norm_eps),
        norms_heads=model.qk_norm,
    )
    layout = KVLayout(model.num_layers, model.num_kv_heads, model.head_dim, torch.float32, CPU)
    return CompiledModel(chain, layout)


def _gains(projection: Projection) -> Tensor:
    """Of the norm before it."""
    assert projection.gains is not None
    return projection.gains


def _head_gains(model: ModelConfig, gains: Tensor | None) -> Tensor:
    """What queries and keys are multiplied by, the scale of their products included."""
    found = torch.ones(model.num_heads + model.num_kv_heads, model.head_dim)
    if gains is not None:
        found *= gains
    found[: model.num_heads] /= math.sqrt(model.head_dim)
    return found


def _stacked(layers: list[Projection]) -> tuple[TiledWeights, Floats]:
    """Matrices in tiles, and their biases [L, columns of the tiles]."""
    matrices = [torch.cat(layer.weights) for layer in layers]
    tiles = in_tiles(matrices)
    biases: Floats = np.zeros((len(layers), padded(len(matrices[0]))), np.float32)
    for own, layer in zip(biases, layers, strict=True):
        if layer.biases is not None:
            own[: len(matrices[0])] = torch.cat(layer.biases).float().numpy()
    return tiles, biases


def _array(values: Tensor) -> Floats:
    """In memory of its own, which the checkpoint's file does not share."""
    found: Floats = values.to(torch.float32, copy=True).contiguous().numpy()
    return found

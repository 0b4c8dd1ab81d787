"""The decoder of all families: embedding, layers of attention and feed-forward, final norm, head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.config import ModelConfig
from backend.kernels.lora import AdapterRows
from backend.kernels.paged_attention import Step, plan_attention
from backend.kv.storage import KVStorage
from backend.layers.attention import Attention, AttentionContext
from backend.layers.embedding import Embedding
from backend.layers.linear import Linear
from backend.layers.mlp import MLP
from backend.layers.moe import MoE
from backend.layers.norm import RMSNorm
from backend.layers.rope import Rope
from backend.layers.step_input import StepInput


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """h += attention(norm(h)); h += feed_forward(norm(h)), where each norm makes the addition before it."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    feed_forward: MLP | MoE

    def __call__(self, hidden: Tensor, context: AttentionContext, added: Tensor | None = None) -> Tensor:
        """What is to be added to the residual stream `hidden` [T, D] after the layer.

        `added`: what the layer before it returned. The stream gets that, and attention's output, in place.
        """
        attended = self.attention(self.attention_norm(hidden, added), context)
        return self.feed_forward(self.mlp_norm(hidden, attended), context.adapters)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Weights and arithmetic of one model; no state of sequences."""

    config: ModelConfig
    embedding: Embedding
    rope: Rope
    layers: list[DecoderLayer]
    final_norm: RMSNorm
    head: Linear

    def open(self, step: StepInput, kv: KVStorage) -> AttentionContext:
        """Plan a step's attention, once for all layers."""
        return open_context(self.config, self.rope, step, kv, self.embedding.dtype)

    def forward(
        self, token_ids: Tensor, context: AttentionContext, layers: list[Tensor] | None = None
    ) -> Tensor:
        """Compute the step's tokens [T] and store their keys and values; returns the residual stream [T, D].

        Each layer but the last appends its output [T, D] to `layers`.
        """
        hidden = self.embedding(token_ids)
        added = self.layers[0](hidden, context)
        for layer in self.layers[1:]:
            if layers is not None:
                layers.append(hidden + added)
            added = layer(hidden, context, added)
        return hidden.add_(added)

    def logits(self, hidden: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """Logits of rows of forward's result: [R, D] → [R, vocab] float32; `rows`: which use an adapter."""
        return self.head(self.final_norm(hidden), rows).to(torch.float32)


def open_context(
    config: ModelConfig, rope: Rope, step: StepInput, kv: KVStorage, dtype: torch.dtype
) -> AttentionContext:
    """What attention of all layers needs for a step; `dtype` is that of activations."""
    angles = rope(step.positions, max(step.context_lens))
    lengths = step.query_lens, step.context_lens
    plan = plan_attention(Step(*lengths, step.rows, step.trees, step.on_device, dtype), config.windows)
    return AttentionContext(plan, angles, step.slots, kv, step.adapters)

"""The decoder of all families: embedding, layers of attention and feed-forward, final norm, head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend.config import ModelConfig
from backend.kernels.lora import AdapterRows
from backend.kernels.paged_attention import Step, plan_attention
from backend.kv.storage import KVStorage
from backend.layers.attention import Attention, AttentionContext
from backend.layers.embedding import Embedding
from backend.layers.gated_delta import GatedDeltaNet
from backend.layers.latent_attention import LatentAttention
from backend.layers.layer_inputs import LayerInputBlock, LayerInputs
from backend.layers.linear import Linear
from backend.layers.mamba2 import HybridMixer, Mamba2
from backend.layers.mlp import MLP
from backend.layers.moe import MoE
from backend.layers.moe_variants import SharedMoE
from backend.layers.norm import NoNorm, Norm, Scale
from backend.layers.rope import Rope
from backend.layers.short_conv import ShortConv
from backend.layers.step_input import StepInput


class Nothing:
    """The sublayer that a layer of one block lacks."""

    __slots__ = ()

    def __call__(self, x: Tensor, context: object = None) -> Tensor:
        """Never called."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """h += mixer(norm(h)); h += feed_forward(norm(h)), where each norm makes the addition before it."""

    attention_norm: Norm | NoNorm
    mixer: Attention | GatedDeltaNet | LatentAttention | ShortConv | Mamba2 | HybridMixer | Nothing
    mlp_norm: Norm | NoNorm
    feed_forward: MLP | MoE | SharedMoE | Nothing

    @property
    def attention(self) -> Attention:
        """The mixer of a layer that attends."""
        assert isinstance(self.mixer, Attention)
        return self.mixer

    def __call__(self, hidden: Tensor, context: AttentionContext, added: Tensor | None = None) -> Tensor:
        """What is to be added to the residual stream `hidden` [T, D] after the layer.

        `added`: what the layer before it returned. The stream gets that, and the mixer's output, in place.
        """
        mixed = self.mixer(self.attention_norm(hidden, added), context)
        return self.feed_forward(self.mlp_norm(hidden, mixed), context.adapters)


@dataclass(frozen=True, slots=True)
class MixerLayer(DecoderLayer):
    """h += mixer(norm(h))."""

    def __call__(self, hidden: Tensor, context: AttentionContext, added: Tensor | None = None) -> Tensor:
        """The same as of its base."""
        return self.mixer(self.attention_norm(hidden, added), context)


@dataclass(frozen=True, slots=True)
class FeedForwardLayer(DecoderLayer):
    """h += feed_forward(norm(h))."""

    def __call__(self, hidden: Tensor, context: AttentionContext, added: Tensor | None = None) -> Tensor:
        """The same as of its base."""
        return self.feed_forward(self.mlp_norm(hidden, added), context.adapters)


@dataclass(frozen=True, slots=True)
class OutputNormLayer(DecoderLayer):
    """h += out(mixer(norm(h))); h += out(feed_forward(norm(h))), with a norm or a factor as `out`."""

    attention_out: Norm | Scale
    mlp_out: Norm | Scale

    def __call__(self, hidden: Tensor, context: AttentionContext, added: Tensor | None = None) -> Tensor:
        """The same as of its base."""
        mixed = self.attention_out(self.mixer(self.attention_norm(hidden, added), context))
        return self.mlp_out(self.feed_forward(self.mlp_norm(hidden, mixed), context.adapters))


@dataclass(frozen=True, slots=True)
class ScaledLayer(OutputNormLayer):
    """h = scale * (h + inputs(h)) after what its base adds to h."""

    scale: float
    inputs: LayerInputBlock | None

    def __call__(self, hidden: Tensor, context: AttentionContext, added: Tensor | None = None) -> Tensor:
        """The same as of its base, and the stream is scaled in place."""
        added = OutputNormLayer.__call__(self, hidden, context, added)
        if self.inputs is not None:
            own = context.layer_inputs[self.attention.shape.layer]
            added = self.inputs(hidden.add_(added), own, context.adapters)
        hidden *= self.scale
        return added.mul_(self.scale)


@dataclass(frozen=True, slots=True)
class ParallelLayer(DecoderLayer):
    """h += attention(norm(h)) + feed_forward(norm(h)); `mlp_norm` is not used."""

    def __call__(self, hidden: Tensor, context: AttentionContext, added: Tensor | None = None) -> Tensor:
        """The same as of its base."""
        x = self.attention_norm(hidden, added)
        return self.mixer(x, context).add_(self.feed_forward(x, context.adapters))


@dataclass(frozen=True, slots=True)
class Decoder:
    """Weights and arithmetic of one model; no state of sequences."""

    config: ModelConfig
    embedding: Embedding
    ropes: Sequence[Rope]  # one for each of config.rotations
    layers: list[DecoderLayer]
    final_norm: Norm
    head: Linear

    @property
    def rope(self) -> Rope:
        """The first rotary embedding; most models have one."""
        return self.ropes[0]

    def open(self, step: StepInput, kv: KVStorage) -> AttentionContext:
        """Plan a step's attention, once for all layers."""
        return open_context(self.config, self.ropes, step, kv, self.embedding.dtype)

    def forward(
        self, token_ids: Tensor, context: AttentionContext, layers: list[Tensor] | None = None
    ) -> Tensor:
        """Compute the step's tokens [T] and store their keys and values; returns the residual stream [T, D].

        Each layer but the last appends its output [T, D] to `layers`.
        """
        return self._run(self.embedding(token_ids), context, layers)

    def _run(self, hidden: Tensor, context: AttentionContext, layers: list[Tensor] | None) -> Tensor:
        added = self.layers[0](hidden, context)
        for layer in self.layers[1:]:
            if layers is not None:
                layers.append(hidden + added)
            added = layer(hidden, context, added)
        if context.kv.states is not None and context.chunks is not None:
            context.kv.states.end(context.chunks)
        return hidden.add_(added)

    def logits(self, hidden: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """Logits of rows of forward's result: [R, D] → [R, vocab] float32; `rows`: which use an adapter."""
        logits = self.head(self.final_norm(hidden), rows).to(torch.float32)
        scalars = self.config.scalars
        if scalars.logits != 1:
            logits *= scalars.logits
        if scalars.softcap is not None:
            logits = (logits / scalars.softcap).tanh_().mul_(scalars.softcap)
        return logits


@dataclass(frozen=True, slots=True)
class LayerInputDecoder(Decoder):
    """A decoder whose layers have embeddings of their own."""

    layer_inputs: LayerInputs

    def forward(
        self, token_ids: Tensor, context: AttentionContext, layers: list[Tensor] | None = None
    ) -> Tensor:
        """The same as of its base."""
        hidden = self.embedding(token_ids)
        inputs = self.layer_inputs(token_ids, hidden, context.adapters)
        return self._run(hidden, replace(context, layer_inputs=inputs), layers)


def open_context(
    config: ModelConfig, ropes: Sequence[Rope], step: StepInput, kv: KVStorage, dtype: torch.dtype
) -> AttentionContext:
    """What attention of all layers needs for a step; `dtype` is that of activations."""
    angles = [rope(step.positions, max(step.context_lens)) for rope in ropes]
    lengths = step.query_lens, step.context_lens
    own, windows = Step(*lengths, step.rows, step.trees, step.on_device, dtype), config.windows
    slots: dict[int | None, Tensor] = dict.fromkeys(windows, step.slots)
    if step.windowed is None:
        plan = plan_attention(own, windows)
    else:
        plan = plan_attention(own, windows, step.windowed.page_table)
        slots = dict.fromkeys(windows, step.windowed.slots) | {None: step.slots}
    chunks = None if kv.states is None else kv.states.begin(step.states or step.rows, *lengths)
    return AttentionContext(plan, angles[0], slots, kv, step.adapters, angles, chunks=chunks)

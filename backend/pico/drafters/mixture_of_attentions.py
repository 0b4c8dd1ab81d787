"""A small Mixture-of-Attentions drafter (arXiv 2410.03804).

Layer self-attention mixes the target's residual streams after each of its layers, per position, into one
memory vector. The drafter's own layer is causal self-attention over token embeddings, cross-attention to the
memory of verified positions 0..t, and an MLP. Its output at position p (token p) replaces the residual stream
that enters the target's last `target_layers` layers; those, the final norm and the output matrix propose
token p + 1. They see the target's own keys and values up to t, and those of drafted positions after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from backend.pico.batches import CPU, make_batch
from backend.pico.drafters.attention import (
    Attention,
    AttentionShape,
    GatedMLP,
    Rotation,
    attend,
    keys_and_values,
    queries,
    rotation,
)
from backend.pico.drafters.drafter import BREADTH, Drafter, candidates, divergence, shift_left, shift_right
from backend.pico.drafters.target import Target, View

LONGEST_ROUND = 5
PROBE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """config.json of a Mixture-of-Attentions drafter; names as in Qwen3's where it has them."""

    hidden_size: int  # the target's
    intermediate_size: int
    num_attention_heads: int  # of self- and cross-attention
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    num_target_layers: int  # all layers, the input of layer self-attention
    layer_attention_heads: int = 3
    target_layers: int = 0  # last layers of the target that run for each draft token

    @classmethod
    def of_target(cls, target: Target) -> MixtureConfig:
        """Return the default shape for a target."""
        shape = target.shape
        return cls(
            shape.hidden_size,
            2 * shape.hidden_size,
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.head_dim,
            shape.rms_norm_eps,
            shape.rope_theta,
            shape.num_hidden_layers,
        )


class LayerSelfAttention(nn.Module):
    """Attention among the layers' streams of one position, then their mean."""

    def __init__(self, config: MixtureConfig) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.layer_attention_heads
        shape = AttentionShape(width, heads, heads, config.head_dim)
        self.stream_norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.layer_embed = nn.Parameter(torch.zeros(config.num_target_layers, width))
        self.attention = Attention(shape, config.rms_norm_eps)
        self.output_norm = nn.RMSNorm(width, config.rms_norm_eps)

    def forward(self, layers: tuple[Tensor, ...]) -> Tensor:
        """Map streams, each [rows, length, D] → memory [rows, length, D]."""
        streams = torch.stack(layers, dim=2)
        x = self.stream_norm(streams).flatten(0, 1) + self.layer_embed  # [rows * length, layers, D]
        still = rotation(1, self.attention.head_dim, 1.0, x.device)  # layers have no position
        k, v = keys_and_values(self.attention, x, still)
        everything = torch.ones((), dtype=torch.bool, device=x.device)
        mixed = attend(queries(self.attention, x, still), k, v, everything)
        x = x + self.attention.o_proj(mixed)
        memory: Tensor = self.output_norm(x.mean(dim=1))
        return memory.view_as(layers[0])


class MixtureOfAttentions(Drafter):
    """`layer_attention`; one layer of `self_attn`, `cross_attn` and `mlp` with pre-norms; a final norm."""

    length = LONGEST_ROUND

    def __init__(self, config: MixtureConfig) -> None:
        super().__init__()
        if not 0 <= config.target_layers < config.num_target_layers:
            raise ValueError(
                f"target_layers is {config.target_layers!r}; choose 0 to {config.num_target_layers - 1}"
            )
        self.config = config
        width, eps = config.hidden_size, config.rms_norm_eps
        shape = AttentionShape(width, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.layer_attention = LayerSelfAttention(config)
        self.embed_norm = nn.RMSNorm(width, eps)
        self.input_layernorm = nn.RMSNorm(width, eps)
        self.self_attn = Attention(shape, eps)
        self.cross_attn_layernorm = nn.RMSNorm(width, eps)
        self.cross_attn = Attention(shape, eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps)
        self.mlp = GatedMLP(width, config.intermediate_size)
        self.output_norm = nn.RMSNorm(width, eps)

    @torch.no_grad()
    def start_from(self, target: Target) -> None:
        """Initialise the output norm with the scale of the stream it replaces, which grows with depth."""
        ids = list(range(min(PROBE_TOKENS, target.shape.vocab_size)))
        view = target.observe(make_batch([(ids, [True] * len(ids))], [0]))
        stream = view.layers[-self.config.target_layers - 1][0]
        self.output_norm.weight.copy_(stream.square().mean(dim=0).sqrt())

    def predict(self, target: Target, view: View, ages: Tensor) -> Tensor:
        """Return final hidden states [rows, length, D]; the one at position p predicts token p + 1.

        ages [rows, length]: p is the ages-th drafted position of its round, which starts at t = p - age.
        """
        length = view.ids.shape[1]
        rotate = rotation(length, self.config.head_dim, self.config.rope_theta, view.ids.device)
        place = torch.arange(length, device=view.ids.device)
        # Position 0 has no verified position before it; it is never drafted and may attend to itself.
        start = (place - ages).clamp(min=0)[:, None, :, None]
        verified = place <= start  # [rows, 1, queries, keys]
        causal = place <= place[:, None]
        x = self._own_layer(target, view, rotate, (causal, verified))
        mask = torch.cat((verified, causal & ~verified), dim=-1)
        count = self.config.target_layers
        streams = view.layers[-count - 1 : -1] if count else ()
        for layer, stream in zip(target.decoder_layers[-count:] if count else (), streams, strict=True):
            x = run_target_layer(layer, stream, x, rotate, mask)
        hidden: Tensor = target.norm(x)
        return hidden

    def _own_layer(
        self, target: Target, view: View, rotate: Rotation, masks: tuple[Tensor, Tensor]
    ) -> Tensor:
        causal, verified = masks
        x: Tensor = self.embed_norm(target.embed(view.ids))
        normed = self.input_layernorm(x)
        k, v = keys_and_values(self.self_attn, normed, rotate)
        x = x + self.self_attn.o_proj(attend(queries(self.self_attn, normed, rotate), k, v, causal))
        k, v = keys_and_values(self.cross_attn, self.layer_attention(view.layers), rotate)
        q = queries(self.cross_attn, self.cross_attn_layernorm(x), rotate)
        x = x + self.cross_attn.o_proj(attend(q, k, v, verified))
        y: Tensor = self.output_norm(x + self.mlp(self.post_attention_layernorm(x)))
        return y

    def loss(self, target: Target, view: View, generator: torch.Generator) -> Tensor:
        """Return the KL to the target's distribution over rounds of random lengths."""
        ages = random_ages(view.ids.shape, generator).to(view.ids.device)
        found = self.predict(target, view, ages)
        drafted = view.predicts & shift_right(view.predicts, 1)
        return divergence(target.logits(found[drafted]), target.logits(view.hidden[drafted]))

    @torch.no_grad()
    def drafts(self, target: Target, view: View) -> Tensor:
        """Draft with one pass per alignment of rounds, for rounds of full length from every start."""
        rows, length = view.ids.shape
        place = torch.arange(length, device=view.ids.device)
        found = torch.zeros(rows, length, self.length, BREADTH, dtype=torch.long, device=view.ids.device)
        for shift in range(self.length):
            ages = (place - shift) % self.length + 1
            best = candidates(target.logits(self.predict(target, view, ages.expand(rows, length))))
            for age in range(1, self.length + 1):
                found[:, :, age - 1] += shift_left(best * (ages == age)[:, None], age)
        return found


def random_ages(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return [rows, length] on the CPU: rounds of 1 to LONGEST_ROUND positions, counted from 1."""
    rows, length = shape
    ages = torch.empty(rows, length, dtype=torch.long, device=CPU)
    rounds = torch.randint(1, LONGEST_ROUND + 1, (rows, length), generator=generator, device=CPU)
    for row, lengths in zip(ages, rounds.tolist(), strict=True):
        counted = [age for size in lengths for age in range(1, size + 1)]
        row.copy_(torch.tensor(counted[:length], device=CPU))
    return ages


def run_target_layer(layer: nn.Module, stream: Tensor, x: Tensor, rotate: Rotation, mask: Tensor) -> Tensor:
    """Run a layer of the target on drafted inputs x; `stream` is its input at verified positions."""
    attention = cast("Attention", layer.get_submodule("self_attn"))  # has the same parameters
    input_norm = layer.get_submodule("input_layernorm")
    verified = keys_and_values(attention, input_norm(stream), rotate)
    normed = input_norm(x)
    drafted = keys_and_values(attention, normed, rotate)
    k, v = (torch.cat(pair, dim=2) for pair in zip(verified, drafted, strict=True))
    x = x + attention.o_proj(attend(queries(attention, normed, rotate), k, v, mask))
    y: Tensor = layer.get_submodule("mlp")(layer.get_submodule("post_attention_layernorm")(x))
    return x + y

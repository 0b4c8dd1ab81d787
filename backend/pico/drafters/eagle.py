"""An EAGLE head (arXiv 2401.15077, 2406.16858), trained on rollouts as in EAGLE-3 (arXiv 2503.01840).

Slot t fuses the target's hidden state at t, after the final norm, with the embedding of token t + 1, and
predicts the hidden state at t + 1, from which the target's output matrix proposes token t + 2. The next slot
uses that prediction as its hidden state. Slots have rotary position t and their own keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backend.pico.drafters.attention import (
    Attention,
    AttentionShape,
    GatedMLP,
    attend,
    keys_and_values,
    queries,
    rotation,
)
from backend.pico.drafters.drafter import (
    Drafter,
    candidates,
    divergence,
    round_places,
    shift_left,
    shift_right,
)
from backend.pico.drafters.target import Target, View

TRAINED_STEPS = 4
MEASURED_STEPS = 5
STEP_DECAY = 0.8  # factor of a step's weight in the loss relative to the step before
FEATURE_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """config.json of an EAGLE head; names as in Qwen3's."""

    hidden_size: int  # the target's, as are all sizes but the next
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float

    @classmethod
    def of_target(cls, target: Target) -> EagleConfig:
        """Return the default shape for a target: one of its own layers, dense."""
        shape = target.shape
        return cls(
            shape.hidden_size,
            2 * shape.hidden_size,
            shape.num_attention_heads,
            shape.num_key_value_heads,
            shape.head_dim,
            shape.rms_norm_eps,
            shape.rope_theta,
        )


class Eagle(Drafter):
    """x = fc([embed_norm(embedding), feature_norm(feature)]); one Qwen3 layer; norm."""

    length = MEASURED_STEPS

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        width, eps = config.hidden_size, config.rms_norm_eps
        self.embed_norm, self.feature_norm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.input_layernorm = nn.RMSNorm(width, eps)
        shape = AttentionShape(width, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.self_attn = Attention(shape, eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps)
        self.mlp = GatedMLP(width, config.intermediate_size)
        self.norm = nn.RMSNorm(width, eps)

    def start_from(self, target: Target) -> None:
        """Initialise the output norm so that predicted features have the scale of the target's."""
        self.norm.weight.data.copy_(target.norm.get_parameter("weight"))

    def rollout(self, target: Target, view: View, steps: int) -> Iterator[Tensor]:
        """Yield each step's predicted features [rows, length, D] at slot t, for hidden state t + 1.

        In step s the rounds start at t - s + 1: a slot attends to the target's hidden states up to there, and
        to this head's predictions for the slots after it, all made by earlier steps of the same round.
        """
        length = view.ids.shape[1]
        rotate = rotation(length, self.config.head_dim, self.config.rope_theta, view.ids.device)
        place = torch.arange(length, device=view.ids.device)
        distance = place.unsqueeze(1) - place  # from slot to key
        embedded = self.embed_norm(target.embed(shift_left(view.ids, 1)))
        feature = view.hidden
        later: list[
            tuple[Tensor, Tensor]
        ] = []  # keys and values of predicted features at the slots of this step
        for step in range(steps):
            x = self.fc(torch.cat((embedded, self.feature_norm(feature)), dim=-1))
            normed = self.input_layernorm(x)
            q = queries(self.self_attn, normed, rotate)
            k, v = keys_and_values(self.self_attn, normed, rotate)
            if step == 0:
                first = (k, v)
            else:
                later = [(shift_right(keys, 1, 2), shift_right(values, 1, 2)) for keys, values in later] + [
                    (k, v)
                ]
            x = x + self.self_attn.o_proj(attend(q, *first, distance >= step, later))
            x = x + self.mlp(self.post_attention_layernorm(x))
            predicted = self.norm(x)
            yield predicted
            feature = shift_right(predicted, 1)

    def loss(self, target: Target, view: View, generator: torch.Generator) -> Tensor:
        """Return the KL of the tokens plus the smooth-L1 of the features, with decaying weights per step."""
        total, weights = torch.zeros((), device=view.ids.device), 0.0
        for step, predicted in enumerate(self.rollout(target, view, TRAINED_STEPS)):
            starts = round_places(view.predicts, step + 1)
            found, expected = shift_left(predicted, step)[starts], shift_left(view.hidden, step + 1)[starts]
            loss = divergence(target.logits(found), target.logits(expected))
            if len(found):
                loss = loss + FEATURE_WEIGHT * nn.functional.smooth_l1_loss(found, expected)
            total = total + STEP_DECAY**step * loss
            weights += STEP_DECAY**step
        return total / weights

    @torch.no_grad()
    def drafts(self, target: Target, view: View) -> Tensor:
        """Draft by a rollout from every start."""
        steps = enumerate(self.rollout(target, view, self.length))
        return torch.stack(
            [shift_left(candidates(target.logits(found)), step) for step, found in steps], dim=2
        )

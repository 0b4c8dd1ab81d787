"""What all drafters share: the round that they draft in, their loss, and their interface for measuring.

A round starts at position t when the target has computed 0..t and chosen token t + 1. The drafter then
proposes K tokens; the i-th (1..K) stands for token t + 1 + i.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from backend.pico.drafters.target import Target, View

BREADTH = 2  # candidates per proposed token, for measuring trees


class Drafter(nn.Module):
    """A trainable drafter. The target is passed in, so that its weights are never part of the drafter's."""

    length: int  # K

    def start_from(self, target: Target) -> None:
        """Take from the target what a new drafter starts with."""

    @abstractmethod
    def loss(self, target: Target, view: View, generator: torch.Generator) -> Tensor:
        """Mean over the tokens that the target writes itself; the generator draws what training varies."""

    @abstractmethod
    def drafts(self, target: Target, view: View) -> Tensor:
        """[rows, length, K, BREADTH]: for every start t the best candidates of each proposed token.

        The i-th candidates presume that the tokens up to t + i are those of the view, as in a chain whose
        first i - 1 tokens were right. Where t + i is past the end they mean nothing.
        """


def ahead(x: Tensor, steps: int, dim: int = 1) -> Tensor:
    """x moved so that place t holds what was at t + steps; zeros come in at the end."""
    gone, kept = x.tensor_split([min(steps, x.shape[dim])], dim)
    return torch.cat((kept, torch.zeros_like(gone)), dim)


def behind(x: Tensor, steps: int, dim: int = 1) -> Tensor:
    """x moved so that place t holds what was at t - steps; zeros come in at the front."""
    kept, gone = x.tensor_split([max(0, x.shape[dim] - steps)], dim)
    return torch.cat((torch.zeros_like(gone), kept), dim)


def round_places(predicts: Tensor, drafted: int) -> Tensor:
    """[rows, length] bool: starts t where the target writes token t + 1 and the `drafted` ones after it."""
    places = predicts
    for step in range(1, drafted + 1):
        places = places & ahead(predicts, step)
    return places


def divergence(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Mean KL(target ‖ drafter) of [n, vocabulary] logits at temperature 1; 0 when n is 0."""
    expected = target_logits.log_softmax(dim=-1)
    found = logits.log_softmax(dim=-1)
    return (expected.exp() * (expected - found)).sum() / max(1, len(logits))


def candidates(logits: Tensor) -> Tensor:
    """[..., vocabulary] → [..., BREADTH] token ids, the likeliest first."""
    return logits.topk(BREADTH, dim=-1).indices

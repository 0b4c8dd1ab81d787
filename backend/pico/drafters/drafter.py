"""The interface of trainable drafters, the round in which they draft, and their loss.

A round starts at position t when the target has computed 0..t and sampled token t + 1. The drafter then
proposes K tokens; the i-th (1..K) is token t + 1 + i.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from backend.pico.drafters.target import Target, View

BREADTH = 2  # candidates per draft token, to measure trees


class Drafter(nn.Module):
    """A trainable drafter. The target is passed in, so that its weights are not parameters of the drafter."""

    length: int  # K

    def start_from(self, target: Target) -> None:
        """Initialise parts of a new drafter from the target."""

    @abstractmethod
    def loss(self, target: Target, view: View, generator: torch.Generator) -> Tensor:
        """Return the mean loss over generated tokens; `generator` makes the random choices of training."""

    @abstractmethod
    def drafts(self, target: Target, view: View) -> Tensor:
        """Return [rows, length, K, BREADTH]: for every start t the top candidates of each draft token.

        The i-th candidates assume that the tokens up to t + i are those of the view, as in a chain whose
        first i - 1 tokens were correct. Where t + i is past the end they are meaningless.
        """


def shift_left(x: Tensor, steps: int, dim: int = 1) -> Tensor:
    """Shift x left: position t gets the value of t + steps; zeros at the end."""
    gone, kept = x.tensor_split([min(steps, x.shape[dim])], dim)
    return torch.cat((kept, torch.zeros_like(gone)), dim)


def shift_right(x: Tensor, steps: int, dim: int = 1) -> Tensor:
    """Shift x right: position t gets the value of t - steps; zeros at the start."""
    kept, gone = x.tensor_split([max(0, x.shape[dim] - steps)], dim)
    return torch.cat((torch.zeros_like(gone), kept), dim)


def round_places(predicts: Tensor, drafted: int) -> Tensor:
    """Return [rows, length] bool: starts t where the model generates tokens t + 1 to t + 1 + `drafted`."""
    places = predicts
    for step in range(1, drafted + 1):
        places = places & shift_left(predicts, step)
    return places


def divergence(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return the mean KL(target ‖ drafter) of [n, vocabulary] logits at temperature 1; 0 if n is 0."""
    expected = target_logits.log_softmax(dim=-1)
    found = logits.log_softmax(dim=-1)
    return (expected.exp() * (expected - found)).sum() / max(1, len(logits))


def candidates(logits: Tensor) -> Tensor:
    """Map [..., vocabulary] logits → [..., BREADTH] token ids, the most likely first."""
    return logits.topk(BREADTH, dim=-1).indices

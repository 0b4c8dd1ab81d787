"""pico-draft: a small dense draft model, distilled from the target's distributions.

Its logits at position t + i propose token t + 1 + i.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backend.pico.drafters.drafter import Drafter, candidates, divergence, shift_left
from backend.pico.drafters.target import Target, View
from backend.pico.model import build_model

if TYPE_CHECKING:
    from backend.pico.model import Model

MEMBER = "pico-draft"
MEASURED_STEPS = 5


class DraftModel(Drafter):
    """A draft model; stored as a model of the family, not as a head."""

    length = MEASURED_STEPS

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    @classmethod
    def new(cls, target: Target, seed: int) -> DraftModel:
        """Create one with the target's vocabulary."""
        return cls(build_model(MEMBER, target.shape.vocab_size, seed))

    def start_from(self, target: Target) -> None:
        """Initialise the embeddings with the principal components of the target's."""
        mine = self.model.get_input_embeddings().get_parameter("weight")
        theirs = target.embed.get_parameter("weight")
        rank = min(mine.shape[1], *theirs.shape)
        u, s, _ = torch.linalg.svd(theirs, full_matrices=False)
        start = u[:, :rank] * s[:rank]
        mine.data[:, :rank] = start * (mine.data.std() / start.std())

    def logits(self, view: View, places: Tensor) -> Tensor:
        """Return the logits at the given positions only: [places, vocabulary]."""
        hidden = self.model.get_submodule("model")(input_ids=view.ids, use_cache=False).last_hidden_state
        found: Tensor = self.model.get_submodule("lm_head")(hidden[places])
        return found

    def loss(self, target: Target, view: View, generator: torch.Generator) -> Tensor:
        """Return the KL divergence to the target at the tokens that the model generates."""
        return divergence(self.logits(view, view.predicts), target.logits(view.hidden[view.predicts]))

    @torch.no_grad()
    def drafts(self, target: Target, view: View) -> Tensor:
        """Draft in one pass: a draft only counts after correct ones, so its prefix is the view's."""
        best = candidates(self.logits(view, torch.ones_like(view.predicts)).view(*view.ids.shape, -1))
        return torch.stack([shift_left(best, step) for step in range(1, self.length + 1)], dim=2)

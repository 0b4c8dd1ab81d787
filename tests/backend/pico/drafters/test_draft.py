"""The draft model's embeddings start similar where the target's are; its drafts depend on tokens only."""

from __future__ import annotations

import torch

from backend.pico.drafters.draft import DraftModel
from backend.pico.drafters.target import Target, View


def test_embeddings_start_with_the_targets_principal_components(target: Target) -> None:
    drafter = DraftModel.new(target, 0)
    drafter.start_from(target)
    mine = drafter.model.get_input_embeddings().get_parameter("weight")
    theirs = target.embed.get_parameter("weight")
    pairs = torch.triu_indices(300, 300, 1)
    found = torch.stack([torch.pdist(mine[:300]), torch.pdist(theirs[:300])])
    assert found.shape[1] == pairs.shape[1]
    assert torch.corrcoef(found)[0, 1] > 0.7


def test_drafts_are_choices_after_the_views_tokens(target: Target, view: View) -> None:
    drafter = DraftModel.new(target, 0)
    drafts = drafter.drafts(target, view)
    best = drafter.model(input_ids=view.ids).logits.argmax(-1)
    for step in range(1, 6):
        assert drafts[0, :8, step - 1, 0].tolist() == best[0, step : 8 + step].tolist()

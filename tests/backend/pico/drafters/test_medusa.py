"""Heads start as the target's own prediction; head i learns the token i positions later."""

from __future__ import annotations

import torch

from backend.pico.drafters.drafter import BREADTH
from backend.pico.drafters.medusa import Medusa, MedusaConfig
from backend.pico.drafters.target import Target, View


def test_a_new_head_repeats_the_targets_choice(target: Target, view: View) -> None:
    drafts = Medusa(MedusaConfig.of_target(target)).drafts(target, view)
    assert drafts.shape == (*view.ids.shape, 4, BREADTH)
    expected = target.logits(view.hidden).argmax(-1)
    assert (drafts[..., 0] == expected.unsqueeze(-1)).all()


def test_loss_compares_with_the_state_i_tokens_later(target: Target, view: View) -> None:
    drafter = Medusa(MedusaConfig(target.shape.hidden_size, heads=1, blocks=1))
    loss = drafter.loss(target, view, torch.Generator())
    logits = target.logits(view.hidden).log_softmax(-1)
    # The model generates row 0 at 5..14 and row 1 at 3..8; both tokens of a pair must be generated.
    here = torch.cat((logits[0, 5:14], logits[1, 3:8]))
    later = torch.cat((logits[0, 6:15], logits[1, 4:9]))
    torch.testing.assert_close(loss, (later.exp() * (later - here)).sum(-1).mean())

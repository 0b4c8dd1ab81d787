"""A view has the target's states at the documented places."""

from __future__ import annotations

import torch

from backend.pico.drafters.target import Target, View


def test_view_holds_streams_and_final_states(target: Target, view: View) -> None:
    assert view.predicts[0].nonzero().flatten().tolist() == list(range(5, 15))
    assert view.predicts[1].nonzero().flatten().tolist() == list(range(3, 9))
    assert len(view.layers) == 3
    torch.testing.assert_close(target.norm(view.layers[-1]), view.hidden)
    expected = target.model(input_ids=view.ids).logits
    torch.testing.assert_close(target.logits(view.hidden), expected)


def test_target_needs_no_gradients(target: Target) -> None:
    assert not any(parameter.requires_grad for parameter in target.model.parameters())

"""The parallel rollout equals drafting round by round and token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.pico.drafters.attention import attend, keys_and_values, queries, rotation
from backend.pico.drafters.eagle import Eagle, EagleConfig
from backend.pico.drafters.target import Target, View


def head(target: Target) -> Eagle:
    torch.manual_seed(5)
    drafter = Eagle(EagleConfig.of_target(target))
    drafter.start_from(target)
    return drafter


def one_round(drafter: Eagle, target: Target, view: View, start: int, steps: int) -> Tensor:
    """Row 0's predictions of the round from `start`: a causal layer over slots 0..start, then a rollout."""
    features = view.hidden[:1, : start + 1]
    found = []
    for step in range(steps):
        slots = start + step + 1
        embedded = drafter.embed_norm(target.embed(view.ids[:1, 1 : slots + 1]))
        x = drafter.fc(torch.cat((embedded, drafter.feature_norm(features)), dim=-1))
        rotate = rotation(slots, drafter.config.head_dim, drafter.config.rope_theta, view.ids.device)
        normed = drafter.input_layernorm(x)
        k, v = keys_and_values(drafter.self_attn, normed, rotate)
        mask = torch.ones(slots, slots).tril().bool()
        x = x + drafter.self_attn.o_proj(attend(queries(drafter.self_attn, normed, rotate), k, v, mask))
        x = x + drafter.mlp(drafter.post_attention_layernorm(x))
        found.append(drafter.norm(x)[:, -1])
        features = torch.cat((features, drafter.norm(x)[:, -1:]), dim=1)
    return torch.cat(found)


@pytest.mark.parametrize("start", [0, 6, 9])
def test_rollout_equals_rounds_one_by_one(target: Target, view: View, start: int) -> None:
    drafter = head(target)
    expected = one_round(drafter, target, view, start, 5)
    steps = enumerate(drafter.rollout(target, view, 5))
    found = torch.stack([predicted[0, start + step] for step, predicted in steps])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    drafts = drafter.drafts(target, view)
    assert drafts[0, start, :, 0].tolist() == target.logits(expected).argmax(-1).tolist()


def test_features_start_with_the_targets_scale(target: Target) -> None:
    target.norm.get_parameter("weight").data.fill_(3.0)
    assert (head(target).norm.weight == 3.0).all()

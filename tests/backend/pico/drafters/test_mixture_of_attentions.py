"""A round sees the target's activations up to its start only, and no token after its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from backend.pico.drafters.mixture_of_attentions import (
    LONGEST_ROUND,
    MixtureConfig,
    MixtureOfAttentions,
    random_ages,
)
from backend.pico.drafters.target import Target, View

START = 7


def predictions(target: Target, view: View, target_layers: int) -> Tensor:
    """Predictions [LONGEST_ROUND, D] of row 0's round from START."""
    torch.manual_seed(5)
    drafter = MixtureOfAttentions(replace(MixtureConfig.of_target(target), target_layers=target_layers))
    ages = (torch.arange(16) - START - 1) % LONGEST_ROUND + 1
    found = drafter.predict(target, view, ages.expand(2, 16))
    return found[0, START + 1 : START + 1 + LONGEST_ROUND]


def changed(view: View, place: int, *, activations: bool) -> View:
    if not activations:
        ids = view.ids.clone()
        ids[:, place] = (ids[:, place] + 1) % 1500
        return replace(view, ids=ids)
    layers = tuple(layer.clone() for layer in view.layers)
    for layer in layers:
        layer[:, place] += torch.linspace(-3, 3, layer.shape[-1])
    return replace(view, layers=layers)


@pytest.mark.parametrize("target_layers", [0, 1, 2])
def test_activations_count_up_to_the_start_of_the_round(
    target: Target, view: View, target_layers: int
) -> None:
    plain = predictions(target, view, target_layers)
    for place in (START + 1, START + 3):
        found = predictions(target, changed(view, place, activations=True), target_layers)
        assert torch.equal(found, plain)
    found = predictions(target, changed(view, START, activations=True), target_layers)
    assert not torch.isclose(found, plain).all(-1).any()


@pytest.mark.parametrize("target_layers", [0, 1])
def test_tokens_count_up_to_the_drafted_position(target: Target, view: View, target_layers: int) -> None:
    plain = predictions(target, view, target_layers)
    found = predictions(target, changed(view, START + 3, activations=False), target_layers)
    assert torch.equal(found[:2], plain[:2])
    assert not torch.isclose(found[2:], plain[2:]).all(-1).any()


def test_drafts_gather_the_rounds_of_every_start(target: Target, view: View) -> None:
    torch.manual_seed(5)
    drafter = MixtureOfAttentions(MixtureConfig.of_target(target))
    drafts = drafter.drafts(target, view)
    expected = target.logits(predictions(target, view, 1)).argmax(-1)
    assert drafts[0, START, :, 0].tolist() == expected.tolist()
    for start in (5, 6):
        ages = (torch.arange(16) - start - 1) % LONGEST_ROUND + 1
        best = target.logits(drafter.predict(target, view, ages.expand(2, 16))).argmax(-1)
        assert drafts[0, start, :, 0].tolist() == best[0, start + 1 : start + 1 + LONGEST_ROUND].tolist()


def test_rounds_of_training_have_every_length() -> None:
    ages = random_ages(torch.Size((3, 200)), torch.Generator().manual_seed(0))
    assert ages[:, 0].tolist() == [1, 1, 1]
    steps = ages[:, 1:] - ages[:, :-1]
    assert ((steps == 1) | (ages[:, 1:] == 1)).all()
    assert set(ages[:, :-1][ages[:, 1:] == 1].tolist()) == {1, 2, 3, 4, 5}


def test_a_target_has_too_few_layers(target: Target) -> None:
    with pytest.raises(ValueError, match="target_layers is 3; choose 0 to 2"):
        MixtureOfAttentions(replace(MixtureConfig.of_target(target), target_layers=3))

from __future__ import annotations

import random

import pytest

from backend.classifiers.weights import WeightsError
from backend.pico.outcomes import questions
from router.estimate import builtin_names, load_estimate
from router.estimate.perturb import PERTURBATIONS


def test_every_shipped_estimate_loads() -> None:
    assert builtin_names() == ["builtin:general", "builtin:pico", "builtin:reasoning"]
    for name in builtin_names():
        assert -1 <= load_estimate(name).mean_gain <= 1


def test_an_unknown_one_is_named_with_those_that_exist() -> None:
    with pytest.raises(WeightsError, match="'builtin:x'; there are builtin:general, builtin:pico"):
        load_estimate("builtin:x")


def test_easy_questions_of_pico_have_less_gain_than_hard_ones() -> None:
    estimate = load_estimate("builtin:pico")
    by_tier: dict[int, list[float]] = {}
    for question in questions(3, "test", seed=11):
        by_tier.setdefault(question.tier, []).append(estimate.predict(question.prompt).gain)
    means = {tier: sum(gains) / len(gains) for tier, gains in by_tier.items()}
    assert means[1] < means[2] < 0.2 < means[3] < means[5]


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_typing_errors_and_politeness_rarely_change_what_is_chosen(name: str) -> None:
    draw, estimate = random.Random(0), load_estimate("builtin:pico")
    asked = [question.prompt for question in questions(2, "test", seed=12)]
    flips = sum(
        (estimate.predict(prompt).gain > 0.3)
        != (estimate.predict(PERTURBATIONS[name](draw, prompt)).gain > 0.3)
        for prompt in asked
    )
    assert flips <= len(asked) * 0.15

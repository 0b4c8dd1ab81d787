from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.strategies import (
    Bandit,
    Candidate,
    Cheapest,
    Fastest,
    QualityPerCost,
    Strategy,
    predicted_quality,
)

SMALL = Candidate("small", quality=0.6, cost=0.2, latency_s=0.1)
MIDDLE = Candidate("middle", quality=0.8, cost=0.5, latency_s=0.2)
LARGE = Candidate("large", quality=0.9, cost=1.0, latency_s=0.4)
ALL = [SMALL, MIDDLE, LARGE]


def test_quality_is_the_usual_one_without_an_estimate_and_falls_with_the_gain() -> None:
    assert predicted_quality(ALL, None) == [0.6, 0.8, 0.9]
    assert predicted_quality(ALL, 0.0) == [0.9, 0.9, 0.9]
    assert predicted_quality(ALL, 0.9) == pytest.approx([0.0, 0.6, 0.9])
    assert predicted_quality([LARGE], 0.5) == [0.9]


@pytest.mark.parametrize(("gain", "model"), [(0.0, "small"), (0.05, "small"), (0.3, "large")])
def test_quality_per_cost_pays_for_gain_only(gain: float, model: str) -> None:
    found = QualityPerCost(cost_weight=0.1).choose([SMALL, LARGE], gain, 0.0)
    assert found.model == model
    assert f"gain {gain:.2f}" in found.reason


def test_quality_per_cost_counts_latency_and_a_cached_prompt() -> None:
    assert QualityPerCost(0.0, latency_weight=10).choose([SMALL, LARGE], 0.5, 0.0).model == "small"
    cached = Candidate("small", 0.6, 0.2, cached_share=1.0)
    assert QualityPerCost(0.1).choose([SMALL, LARGE], 0.1, 0.0).model == "large"
    assert QualityPerCost(0.1).choose([cached, LARGE], 0.1, 0.0).model == "small"


@settings(max_examples=30)  # of a thousand choices each
@given(st.integers(0, 2**32), st.sampled_from([0.1, 0.3, 0.7]))
def test_a_target_share_of_strong_calls_is_met(seed: int, share: float) -> None:
    draw, strategy = random.Random(seed), QualityPerCost(strong_share=share)
    gains = [draw.betavariate(1, 3) for _ in range(1_000)]
    models = [strategy.choose([SMALL, LARGE], gain, 0.0).model for gain in gains]
    assert models[300:].count("large") / 700 == pytest.approx(share, abs=0.1)


def test_a_budget_is_kept_on_traffic_like_the_last() -> None:
    draw, strategy = random.Random(1), QualityPerCost(cost_weight=0.0)
    small, large = (replace(each, usd=usd) for each, usd in ((SMALL, 0.001), (LARGE, 0.010)))
    strategy.usd_target = 0.004
    spent = []
    for _ in range(1_000):
        model = strategy.choose([small, large], draw.betavariate(1, 3), 0.0).model
        spent.append(0.010 if model == "large" else 0.001)
    assert sum(spent[300:]) / 700 == pytest.approx(0.004, rel=0.15)
    strategy.usd_target = 0.0  # nothing is left
    for _ in range(20):
        found = strategy.choose([small, large], 0.3, 0.0)
    assert found.model == "small"


def test_a_bandit_learns_from_judgements_and_goes_on_trying() -> None:
    draw, strategy = random.Random(2), Bandit()
    right, judged = {"small": 0.5, "large": 0.8}, {"small": [0.0, 0.0], "large": [0.0, 0.0]}
    models = []
    for _ in range(600):
        known = [
            replace(each, good=judged[each.model][0], bad=judged[each.model][1]) for each in (SMALL, LARGE)
        ]
        model = strategy.choose(known, None, draw.random()).model
        judged[model][draw.random() >= right[model]] += 1
        models.append(model)
    assert models[300:].count("large") > 270 and 10 < models.count("small") < 150


def test_a_bandit_pays_for_quality_only() -> None:
    known = [replace(each, good=80.0, bad=20.0) for each in (SMALL, LARGE)]
    draws = [Bandit(cost_weight=0.5).choose(known, None, n / 50).model for n in range(50)]
    assert set(draws) == {"small"}


def test_cheapest_takes_the_least_cost_that_is_good_enough() -> None:
    assert Cheapest(0.0).choose(ALL, None, 0.0).model == "small"
    assert Cheapest(0.7).choose(ALL, None, 0.0).model == "middle"
    assert Cheapest(0.7).choose(ALL, 0.05, 0.0).model == "small"
    found = Cheapest(0.95).choose(ALL, None, 0.0)
    assert found.model == "large" and "is the highest" in found.reason


def test_fastest_takes_the_less_of_two_and_every_pair_alike() -> None:
    models = Counter(Fastest().choose(ALL, None, number / 600).model for number in range(600))
    assert models == {"small": 400, "middle": 200}
    assert Fastest().choose([LARGE], None, 0.999).model == "large"


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 5)), min_size=1, max_size=6),
    st.none() | st.floats(-1, 1),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([QualityPerCost(), QualityPerCost(strong_share=0.5), Cheapest(0.5), Fastest(), Bandit()]),
)
def test_some_candidate_is_always_chosen(
    values: list[tuple[float, float, float]], gain: float | None, draw: float, strategy: Strategy
) -> None:
    candidates = [Candidate(str(number), *each) for number, each in enumerate(values)]
    assert strategy.choose(candidates, gain, draw).model in {each.model for each in candidates}

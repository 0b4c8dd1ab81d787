from __future__ import annotations

import random

import numpy as np
import pytest

from backend.speculative.acceptance import Acceptance, Places, prior_acceptance, sizes, survivals
from backend.speculative.adaptive import LengthPolicy

PLAIN_S = 0.010
EASY, HARD = 0.95, 0.2


def test_places_where_drafts_fail_less_than_expected_are_worth_more() -> None:
    places = Places()
    rng = random.Random(3)
    for _ in range(3000):
        skill = rng.choice((EASY, HARD))  # of a stretch; a mean rate of 0.575 is all that is known
        right = next((i for i in range(8) if rng.random() >= skill), 8)
        places.observe(0.575, 8, right)
    ratios = places.failures(8)
    assert ratios[0] == pytest.approx(1.0, abs=0.1)
    assert (np.diff(ratios[:3]) < 0).all() and ratios[7] < 0.3
    known, unknown = Acceptance(100.0, 57.5, places=places), Acceptance(100.0, 57.5)
    gains, plain_gains = map(sum, survivals([known, unknown], [8, 8]))
    expected = sum(0.5 * EASY**n + 0.5 * HARD**n for n in range(1, 9))
    assert gains == pytest.approx(expected, rel=0.15) and plain_gains < 0.5 * expected


def test_places_that_are_not_told_apart_or_not_seen_are_like_those_before() -> None:
    places = Places()
    for _ in range(200):
        places.observe(0.5, 4, 4)
        places.observe_sizes([2, 2], 4)
    assert places.failures(40)[4:] == pytest.approx([places.failures(5)[4]] * 36)
    assert places.sizes(4) == pytest.approx([2.0, 2.0, 0.0, 0.0], abs=0.1)
    tokens = sizes([Acceptance(places=places), Acceptance()], 3)
    assert tokens[0] == pytest.approx([2.0, 2.0, 0.0], abs=0.1)
    assert tokens[1] == pytest.approx([1.0, 1.0, 1.0])


def test_a_hard_stretch_is_forgotten_while_nothing_is_drafted() -> None:
    acceptance, usual = Acceptance(10.0, 1.0), 0.7
    acceptance.drift(usual, 5)
    soon = acceptance.rate
    acceptance.drift(usual, 100)
    assert 0.1 < soon < 0.4 and acceptance.rate == pytest.approx(usual, abs=0.02)
    acceptance = Acceptance(10.0, 9.0)
    acceptance.drift(usual, 100)
    assert acceptance.rate == 0.9, "better than usual stays so"


def speed(limit: int, *, is_adaptive: bool, steps: int = 6000) -> float:
    """Tokens per second compared with no drafts: easy and hard stretches, chains that know their end."""
    rng = random.Random(5)
    policy = LengthPolicy(is_adaptive=is_adaptive)
    prior = prior_acceptance()
    tokens, time_s, acceptance, skill, left = 0, 0.0, prior.child(), EASY, 0
    for step in range(steps):
        if step % 60 == 0:
            acceptance = prior.child()  # another sequence
        if left <= 0:
            skill, left = rng.choice((EASY, EASY, HARD)), rng.randint(8, 30)
        k = policy.choose([acceptance], [limit], 1)[0]
        if not k:
            acceptance.drift(prior.rate, 1)
        right = next((i for i in range(k) if rng.random() >= skill), k)
        # It ends a token or two behind the first wrong one, for it doubts that one.
        given = min(k, right + 2)
        step_s = PLAIN_S * (1.0 + (0.4 + 0.12 * given if k else 0.0)) * rng.uniform(0.95, 1.2)
        if k:
            acceptance.places.observe_sizes([1] * given, k)
            acceptance.places.observe(acceptance.rate, k, right)
            for known in (acceptance, prior):
                known.observe(k, right)
        policy.costs.observe(1, given if k else 0, step_s)
        policy.judge(1, given if k else 0, right, step_s)
        tokens, time_s, left = tokens + 1 + right, time_s + step_s, left - 1 - right
    return tokens / time_s * PLAIN_S * 1.075


def test_adapting_is_worth_it_on_texts_of_easy_and_hard_stretches() -> None:
    best_fixed = max(speed(limit, is_adaptive=False) for limit in (4, 8, 12))
    assert best_fixed > 1.6
    assert speed(12, is_adaptive=True) > best_fixed

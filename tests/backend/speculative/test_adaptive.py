from __future__ import annotations

import random

import numpy as np
import pytest

from backend.speculative.acceptance import Acceptance, Places, prior_acceptance
from backend.speculative.adaptive import Balance, LengthPolicy, StepCosts

PLAIN_S = 0.010


def policy_after(
    cost_per_draft: float, num_sequences: int, skill: float, steps: int = 300
) -> tuple[float, float]:
    """(tokens per second compared with no drafts, drafts per step in the end) on a simulated machine."""
    rng = random.Random(1)
    policy = LengthPolicy()
    acceptances = [prior_acceptance().child() for _ in range(num_sequences)]
    tokens, time_s, drafted = 0, 0.0, 0.0
    for step in range(steps):
        ks = policy.choose(acceptances, [8] * num_sequences, num_sequences)
        step_s = PLAIN_S * (1 + cost_per_draft * sum(ks)) * rng.uniform(0.9, 1.1)
        num_accepted = 0
        for acceptance, k in zip(acceptances, ks, strict=True):
            right = next((i for i in range(k) if rng.random() >= skill), k)
            if k:
                acceptance.observe(k, right)
            tokens += 1 + right
            num_accepted += right
        policy.costs.observe(num_sequences, sum(ks), step_s)
        policy.judge(num_sequences, sum(ks), num_accepted, step_s)
        time_s += step_s
        drafted += sum(ks) / 100 if step >= steps - 100 else 0.0
    return tokens / time_s / (num_sequences / PLAIN_S), drafted


@pytest.mark.parametrize("num_sequences", [1, 4, 16, 64])
@pytest.mark.parametrize("cost", [0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("skill", [0.0, 0.3, 0.6, 0.95])
def test_drafting_is_never_a_loss(num_sequences: int, cost: float, skill: float) -> None:
    speedup, _ = policy_after(cost / num_sequences, num_sequences, skill)
    assert speedup > 0.97


def test_cheap_right_drafts_are_long_and_dear_ones_short() -> None:
    speedup, drafted = policy_after(0.02, 1, 0.95)
    assert drafted >= 6 and speedup > 3
    assert policy_after(0.5, 1, 0.6)[1] < 1.5
    assert policy_after(0.02, 1, 0.0)[1] < 0.5


def test_without_a_figure_for_plain_steps_the_next_is_plain() -> None:
    policy = LengthPolicy()
    assert policy.choose([Acceptance()], [4], 1) == [0]
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    assert policy.choose([Acceptance()], [4], 1)[0] > 0
    assert policy.choose([Acceptance()] * 4, [4] * 4, 4) == [0] * 4, "another batch size, unknown"


def test_a_switch_takes_more_than_staying() -> None:
    policy = LengthPolicy()
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    for _ in range(2):
        policy.costs.observe(1, 1, PLAIN_S * 1.3)
    rates = np.linspace(0.2, 0.9, 71)
    on = [bool(policy.choose([Acceptance(1.0, r)], [1], 1)[0]) for r in rates]
    off = [bool(policy.choose([Acceptance(1.0, r)], [1], 1)[0]) for r in rates[::-1]][::-1]
    assert sum(off) > sum(on) > 0


def test_costs_between_and_beyond_what_was_measured() -> None:
    costs = StepCosts()
    for _ in range(3):
        costs.observe(2, 0, 0.1)
    for _ in range(2):
        costs.observe(2, 4, 0.2)
    assert list(map(costs.curve(2).at, [0, 2, 4, 8])) == pytest.approx([1.0, 1.75, 2.0, 2.8])
    for _ in range(94):
        assert not costs.plain_steps_wanted(2)
        costs.observe(2, 4, 0.2)
    assert costs.plain_steps_wanted(2) == 1


def test_what_few_drafts_once_took_does_not_make_more_of_them_dear() -> None:
    costs = StepCosts()
    for num_drafts, time_s in ((0, PLAIN_S), (3, 2.0 * PLAIN_S), (8, 1.4 * PLAIN_S)):
        for _ in range(3):
            costs.observe(1, num_drafts, time_s)
    assert list(map(costs.curve(1).at, [3, 8])) == pytest.approx([1.4, 1.4])


def test_the_first_step_with_drafts_may_warm_up() -> None:
    policy = LengthPolicy()
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    for time_s in (6.0 * PLAIN_S, 1.3 * PLAIN_S):
        assert policy.choose([Acceptance()], [4], 1)[0] > 0
        policy.costs.observe(1, 4, time_s)
    assert policy.costs.curve(1).at(4) == pytest.approx(1.3)


def test_a_machine_that_stutters_is_not_taken_for_a_slow_one() -> None:
    costs = StepCosts()
    rng = random.Random(4)
    for step in range(400):
        delay = rng.choice([1.0, 1.0, 1.0, 8.0])
        costs.observe(1, 4 * (step % 4 > 0), delay * PLAIN_S * (1.4 if step % 4 else 1.0))
    assert list(map(costs.curve(1).at, [4])) == pytest.approx([1.4], rel=0.15)


def test_only_what_was_tried_counts() -> None:
    acceptance = Acceptance(0.0, 0.0)
    acceptance.observe(8, 1)
    assert acceptance.rate == 0.5
    before = acceptance.rate
    acceptance.rest(0.1)
    assert acceptance.rate > before


def test_limits_hold_without_adaptation() -> None:
    assert LengthPolicy(is_adaptive=False).choose([Acceptance()] * 2, [3, 0], 2) == [3, 0]


def test_drafts_that_do_not_pay_rest_ever_longer_and_start_anew_when_they_do() -> None:
    policy = LengthPolicy()
    sure = [Acceptance(100.0, 95.0)]
    rests: list[int] = []
    for accepted in (0, 0, 4):
        while not policy.choose(sure, [4], 1)[0]:
            policy.costs.observe(1, 0, PLAIN_S)
            policy.judge(1, 0, 0, PLAIN_S)
            rests[-1:] = [rests[-1] + 1] if rests else []
        rests.append(0)
        for _ in range(20):
            ks = policy.choose(sure, [4], 1)
            if not ks[0]:
                break
            policy.judge(1, ks[0], accepted, 1.2 * PLAIN_S)
    assert 48 <= rests[0] < rests[1] and rests[2] == 0


def test_how_many_steps_are_plain_for_sure() -> None:
    policy = LengthPolicy()
    balance = policy._balances[0] = Balance()
    balance.observe_plain(PLAIN_S)
    for _ in range(8):
        balance.observe(1.0, 3.0 * PLAIN_S)
    assert policy.plain_steps(1) == 48 and policy.plain_steps(2) == 3
    policy.pass_by(1, 47)
    policy.pass_by(2, 47)  # of which nothing is known
    assert policy.plain_steps(1) == 3, "first plain steps are to be measured"
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    assert policy.plain_steps(1) == 1
    policy.pass_by(1, 4)
    assert policy.plain_steps(1) == 0


def test_steps_that_nobody_measured_count_towards_the_next_trial() -> None:
    balance = Balance()
    balance.observe_plain(PLAIN_S)
    for _ in range(20):
        balance.observe(2.0, PLAIN_S)
    assert not balance.is_on_trial
    balance.pass_by(47)
    assert not balance.is_on_trial
    balance.pass_by(1)
    assert balance.is_on_trial


def test_a_balance_forgets_a_hiccup() -> None:
    balance = Balance()
    for _ in range(5):
        balance.observe_plain(PLAIN_S)
    for step in range(60):
        balance.observe(1.5, PLAIN_S * (40.0 if step % 20 == 7 else 1.2))
        assert not balance.rest_steps


def of_trees(width: int, rate: float) -> Acceptance:
    """What is known of a sequence whose drafts have so many nodes at each level."""
    places = Places()
    for _ in range(500):
        places.observe_sizes([width] * 8, 8)
    return Acceptance(10, 10 * rate, places=places)


def test_a_level_of_a_tree_costs_all_its_nodes() -> None:
    def depth(acceptance: Acceptance) -> int:
        policy = LengthPolicy()
        for _ in range(3):
            policy.costs.observe(1, 0, PLAIN_S)
        for num_drafts in (4, 8, 16, 32):
            for _ in range(20):
                policy.costs.observe(1, num_drafts, PLAIN_S * (1 + 0.05 * num_drafts))
        return policy.choose([acceptance], [8], 1)[0]

    chain, narrow, wide = (depth(of_trees(width, 0.75)) for width in (1, 2, 8))
    assert depth(Acceptance(10, 7.5)) == chain > narrow > wide


def test_the_first_tree_is_one_level_deep_however_wide() -> None:
    policy = LengthPolicy()
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    assert policy.choose([of_trees(12, 0.9)], [8], 1) == [1]

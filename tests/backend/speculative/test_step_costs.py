from __future__ import annotations

import random

import pytest

from backend.speculative.step_costs import StepCosts

PLAIN_S = 0.010


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


def test_a_plain_step_that_cannot_be_had_is_wanted_for_four_steps_in_a_hundred() -> None:
    costs = measured(num_sequences=2)
    wanted = []
    for _ in range(300):
        costs.observe(2, 4, 2 * PLAIN_S)
        wanted.append(costs.plain_steps_wanted(2))
    expected = [*range(96, 100), *range(192, 196), *range(288, 292)]
    assert [step for step, is_wanted in enumerate(wanted, start=1) if is_wanted] == expected
    costs.observe(2, 0, PLAIN_S)
    assert not costs.plain_steps_wanted(2)


def test_what_few_drafts_once_took_does_not_make_more_of_them_dear() -> None:
    costs = StepCosts()
    for num_drafts, time_s in ((0, PLAIN_S), (3, 2.0 * PLAIN_S), (8, 1.4 * PLAIN_S)):
        for _ in range(3):
            costs.observe(1, num_drafts, time_s)
    assert list(map(costs.curve(1).at, [3, 8])) == pytest.approx([1.4, 1.4])


def test_a_machine_that_stutters_is_not_taken_for_a_slow_one() -> None:
    costs = StepCosts()
    rng = random.Random(4)
    for step in range(400):
        delay = rng.choice([1.0, 1.0, 1.0, 8.0])
        costs.observe(1, 4 * (step % 4 > 0), delay * PLAIN_S * (1.4 if step % 4 else 1.0))
    assert list(map(costs.curve(1).at, [4])) == pytest.approx([1.4], rel=0.15)


def measured(*ratios: tuple[int, float], num_sequences: int = 64) -> StepCosts:
    """What is known after steps with so many drafts each that took so many times a plain one."""
    costs = StepCosts()
    for num_drafts, ratio in ((0, 1.0), *ratios):
        for _ in range(3):
            costs.observe(num_sequences, num_drafts, ratio * PLAIN_S)
    return costs


def test_the_first_drafts_of_many_sequences_are_few() -> None:
    assert [measured(num_sequences=n).longest(n) for n in (1, 16, 64)] == [4, 4, 8]
    assert measured((8, 1.5)).longest(64) == 16


def test_hope_goes_by_what_more_drafts_have_shown() -> None:
    def hoped(*ratios: tuple[int, float]) -> float:
        return measured(*ratios).curve(64, is_hopeful=True).at(64)

    assert hoped((8, 1.3)) == pytest.approx(1.3 + 56 * 0.05 / 64), "all of it may be there with the first"
    assert hoped((8, 1.3), (16, 1.3)) == pytest.approx(1.3 + 48 * 0.05 / 64)
    assert hoped((8, 1.3), (16, 1.4)) == pytest.approx(1.4 + 48 * 0.1 / 8)
    steep = measured((8, 1.1), (16, 3.0))
    assert steep.curve(64, is_hopeful=True) == steep.curve(64), "never worse than without hope"


def test_what_drafts_take_is_forgotten_as_fast_in_steps_that_nobody_measures() -> None:
    seen, unseen = measured((8, 2.0)), measured((8, 2.0))
    for _ in range(100):
        seen.observe(64, 0, PLAIN_S)
    unseen.pass_by(64, 100)
    assert seen.curve(64).at(8) == pytest.approx(unseen.curve(64).at(8))
    assert 1.8 < unseen.curve(64).at(8) < 1.95
    unseen.pass_by(4, 100)  # of which nothing is known

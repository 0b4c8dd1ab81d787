from __future__ import annotations

import pytest

from backend.speculative.balance import Balance

PLAIN_S = 0.010


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


def begun() -> Balance:
    """One that knows what a plain step takes."""
    balance = Balance()
    balance.observe_plain(PLAIN_S)
    return balance


def steps_of_trial(gain: float, spent: float, *, is_partial: bool = False, most: int = 50) -> int:
    """Steps with drafts until they rest."""
    balance = begun()
    for step in range(1, most):
        balance.observe(gain, spent * PLAIN_S, is_partial=is_partial)
        if balance.rest_steps:
            return step
    return most


def test_a_trial_ends_when_it_has_lost_three_steps() -> None:
    assert steps_of_trial(1.0, 1.9) == 4
    assert steps_of_trial(1.0, 40.0) == 4, "a single step counts for one"
    assert steps_of_trial(5.0, 40.0) == 4, "and for no more where much was gained"
    assert steps_of_trial(1.0, 1.3) == 8, "otherwise it is judged at its end"
    assert steps_of_trial(1.0, 1.04) == 50


def test_drafts_for_few_only_need_not_pay_but_cost_no_more_than_others() -> None:
    assert steps_of_trial(1.0, 1.04, is_partial=True) == 50
    assert steps_of_trial(1.0, 1.3, is_partial=True) == 11
    balance = begun()
    for _ in range(20):
        balance.observe(1.0, 1.1 * PLAIN_S, is_partial=True)
    assert balance.is_on_trial, "drafts for all are still to come"


def test_what_a_trial_has_gained_is_no_leave_to_lose() -> None:
    balance = begun()
    for _ in range(100):
        balance.observe(2.0, PLAIN_S, is_partial=True)
    for _ in range(3):
        balance.observe(1.0, 2.0 * PLAIN_S, is_partial=True)
        assert not balance.rest_steps
    balance.observe(1.0, 2.0 * PLAIN_S, is_partial=True)
    assert balance.rest_steps


def test_what_a_trial_has_lost_is_forgotten_when_nobody_goes_on_with_it() -> None:
    balance = begun()
    for _ in range(3):
        balance.observe(1.0, 2.0 * PLAIN_S)
    balance.pass_by(48)
    balance.observe(1.0, 2.0 * PLAIN_S)
    assert not balance.rest_steps


def test_drafts_that_come_while_others_rest_are_not_judged() -> None:
    balance = begun()
    for _ in range(8):
        balance.observe(1.0, 3.0 * PLAIN_S)
    assert balance.rest_steps == 48
    assert balance.observe(1.0, 1.5 * PLAIN_S) == pytest.approx(-0.5 * PLAIN_S), "but what they took is said"
    balance.pass_by(48)
    for _ in range(3):
        balance.observe(1.0, 2.0 * PLAIN_S)
    assert not balance.rest_steps, "the trial begins anew"


def test_plain_steps_that_became_faster_are_soon_believed() -> None:
    balance = begun()
    for _ in range(4):
        balance.observe_plain(PLAIN_S / 2)
    assert balance.observe(2.0, PLAIN_S / 2) == pytest.approx(PLAIN_S / 2, rel=0.2)

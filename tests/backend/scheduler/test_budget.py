from __future__ import annotations

import random

import pytest

from backend.scheduler.budget import PrefillBudget

STRETCH = 2.3


def make_budget() -> PrefillBudget:
    return PrefillBudget(max_batch_tokens=2048, min_chunk_tokens=16, max_step_stretch=STRETCH, max_step_s=1.0)


def step_s(num_decodes: int, num_prompt_tokens: int, token_s: float) -> float:
    """A machine model: reading the weights, each decode, a fixed cost of prefill, each prompt token."""
    started = 0.001 if num_prompt_tokens else 0.0
    return 0.008 + 0.0005 * num_decodes + started + token_s * num_prompt_tokens


def prefill_alone(budget: PrefillBudget, prompt_tokens: int, token_s: float) -> list[float]:
    """Compute a prompt alone on a machine with 10 ms of overhead per step; return the step times."""
    times_s: list[float] = []
    while prompt_tokens:
        tokens = min(prompt_tokens, budget.prefill_tokens(0, 1))
        assert tokens > 0
        times_s.append(0.01 + token_s * tokens)
        budget.observe(0, tokens, times_s[-1])
        prompt_tokens -= tokens
    return times_s


def test_the_first_step_is_small_and_a_fast_machine_then_fills_the_batch() -> None:
    budget = make_budget()
    assert budget.prefill_tokens(0, 5) == 64
    assert len(prefill_alone(budget, 64 + 3 * 2048, 0.00001)) == 4
    assert budget.prefill_tokens(0, 5) == 2048


@pytest.mark.parametrize("token_s", [0.002, 0.012, 0.05])
def test_a_prompt_alone_is_computed_in_steps_of_about_a_second(token_s: float) -> None:
    times_s = prefill_alone(make_budget(), 4000, token_s)
    assert max(times_s[1:]) <= 1.1 and times_s[0] <= 64 * token_s + 0.01
    assert sum(times_s[1:-1]) / len(times_s[1:-1]) >= 0.8, "and not much shorter either"


def test_a_cost_that_grows_with_the_context_is_followed() -> None:
    budget, computed = make_budget(), 0
    for _ in range(200):
        tokens = budget.prefill_tokens(0, 1)
        elapsed_s = tokens * (0.002 + 2e-6 * computed)
        assert elapsed_s <= 1.6
        budget.observe(0, tokens, elapsed_s)
        computed += tokens


def test_short_prompts_do_not_slow_the_next_long_one() -> None:
    budget = make_budget()
    for _ in range(30):
        budget.observe(0, 5, 0.01)
    times_s = prefill_alone(budget, 8192, 0.00001)
    assert len(times_s) <= 6, "the fixed cost of a step must not be attributed to its few tokens"


def test_an_outlier_does_not_shrink_prefill_for_long() -> None:
    budget = make_budget()
    prefill_alone(budget, 8192, 0.0001)
    budget.observe(0, 2048, 60.0)
    assert budget.prefill_tokens(0, 1) >= 1024
    assert len(prefill_alone(budget, 8192, 0.0001)) <= 8


def test_a_mixed_step_is_bounded_in_time_under_pressure() -> None:
    budget = make_budget()
    for _ in range(40):
        tokens = budget.prefill_tokens(1, 200)
        budget.observe(1, tokens, 0.1 + 0.012 * tokens)
        assert 0.1 + 0.012 * tokens <= 1.1


def test_an_idle_queue_and_no_decodes_leave_the_whole_batch() -> None:
    assert make_budget().prefill_tokens(0, 0) == 2048


def test_decoding_is_measured_before_prefill_joins() -> None:
    budget = make_budget()
    budget.observe(0, 512, 0.1)
    assert budget.prefill_tokens(4, 1) == 0
    budget.observe(4, 0, 0.01)
    assert budget.prefill_tokens(4, 1) == 16  # slow start


def test_decodes_come_off_the_batch() -> None:
    budget = make_budget()
    assert budget.prefill_tokens(2048, 1) == 0
    budget.observe(2040, 0, 10.0)
    budget.observe(0, 2048, 0.001)
    assert budget.prefill_tokens(2040, 1) == 8


@pytest.mark.parametrize("token_s", [0.00001, 0.0001, 0.0005])
@pytest.mark.parametrize("num_decodes", [1, 4, 32])
def test_mixed_steps_keep_the_bound_and_use_it(token_s: float, num_decodes: int) -> None:
    budget, noise = make_budget(), random.Random(1)
    idle_s = step_s(num_decodes, 0, token_s)
    budget.observe(0, 1024, step_s(0, 1024, token_s * 0.5))  # big chunks alone are more efficient
    stretches: list[float] = []
    for _ in range(200):
        tokens = budget.prefill_tokens(num_decodes, 1)
        elapsed_s = step_s(num_decodes, tokens, token_s) * noise.uniform(0.95, 1.05)
        budget.observe(num_decodes, tokens, elapsed_s)
        if tokens:
            stretches.append(elapsed_s / idle_s)
    assert max(stretches) <= 3.0
    reachable = min(STRETCH, step_s(num_decodes, 2048 - num_decodes, token_s) / idle_s)
    assert sum(stretches[20:]) / len(stretches[20:]) >= 0.7 * reachable


def test_an_outlier_is_clipped_and_decays() -> None:
    budget = make_budget()
    for _ in range(20):
        budget.observe(4, 0, 0.01)
    for _ in range(20):
        budget.observe(4, budget.prefill_tokens(4, 1), 0.01 + 0.0001 * budget.prefill_tokens(4, 1))
    before = budget.prefill_tokens(4, 1)
    budget.observe(4, 0, 1.0)  # a hundred times too long: must not allow huge chunks
    assert budget.prefill_tokens(4, 1) <= 1.3 * before
    budget.observe(4, before, 1.0)
    assert budget.prefill_tokens(4, 1) >= before // 2


def test_decoding_is_measured_again_periodically() -> None:
    budget = make_budget()
    budget.observe(4, 0, 0.01)
    asked = []
    for _ in range(200):
        asked.append(budget.prefill_tokens(4, 1))
        budget.observe(4, asked[-1], 0.01 + 0.0001 * asked[-1])
    assert 2 <= asked.count(0) <= 4


def test_many_prefills_outweigh_few_decodes() -> None:
    budget = make_budget()
    for _ in range(50):
        tokens = budget.prefill_tokens(4, 1)
        budget.observe(4, tokens, 0.01 + 0.0001 * tokens)
    assert budget.prefill_tokens(4, 40) >= 4 * budget.prefill_tokens(4, 4)


def test_a_burst_is_not_held_back_by_the_slow_start() -> None:
    budget = make_budget()
    budget.observe(4, 0, 0.01)
    budget.observe(0, 1024, 0.1)
    for _ in range(10):
        tokens = budget.prefill_tokens(4, 16)
        budget.observe(4, tokens, 0.01 + 0.0001 * tokens)
    assert budget.prefill_tokens(4, 16) >= 0.9 * 4 * 1.3 * 0.01 / 0.0001

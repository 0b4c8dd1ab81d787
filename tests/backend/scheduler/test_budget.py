from __future__ import annotations

import random

import pytest

from backend.scheduler.budget import PrefillBudget

STRETCH = 2.3


def make_budget() -> PrefillBudget:
    return PrefillBudget(max_batch_tokens=2048, min_chunk_tokens=16, max_step_stretch=STRETCH)


def step_s(num_decodes: int, num_prompt_tokens: int, token_s: float) -> float:
    """A machine: reading the weights, each decode, a start-up cost for prompts, each prompt token."""
    started = 0.001 if num_prompt_tokens else 0.0
    return 0.008 + 0.0005 * num_decodes + started + token_s * num_prompt_tokens


def test_everything_when_nothing_decodes() -> None:
    assert make_budget().prefill_tokens(0, 5) == 2048


def test_decoding_is_measured_before_prefill_joins() -> None:
    budget = make_budget()
    budget.observe(0, 512, 0.1)
    assert budget.prefill_tokens(4, 1) == 0
    budget.observe(4, 0, 0.01)
    assert budget.prefill_tokens(4, 1) == 16  # starts carefully


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


def test_a_hiccup_is_forgotten() -> None:
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


def test_decoding_is_measured_again_from_time_to_time() -> None:
    budget = make_budget()
    budget.observe(4, 0, 0.01)
    asked = []
    for _ in range(200):
        asked.append(budget.prefill_tokens(4, 1))
        budget.observe(4, asked[-1], 0.01 + 0.0001 * asked[-1])
    assert 2 <= asked.count(0) <= 4


def test_many_that_wait_for_a_first_token_weigh_more_than_few_that_decode() -> None:
    budget = make_budget()
    for _ in range(50):
        tokens = budget.prefill_tokens(4, 1)
        budget.observe(4, tokens, 0.01 + 0.0001 * tokens)
    assert budget.prefill_tokens(4, 40) >= 4 * budget.prefill_tokens(4, 4)


def test_a_burst_is_not_held_back_by_the_careful_start() -> None:
    budget = make_budget()
    budget.observe(4, 0, 0.01)
    budget.observe(0, 1024, 0.1)
    for _ in range(10):
        tokens = budget.prefill_tokens(4, 16)
        budget.observe(4, tokens, 0.01 + 0.0001 * tokens)
    assert budget.prefill_tokens(4, 16) >= 0.9 * 4 * 1.3 * 0.01 / 0.0001

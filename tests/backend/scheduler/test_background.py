from __future__ import annotations

from backend.scheduler.background import BackgroundBudget


def budget(max_share: float = 0.1) -> BackgroundBudget:
    return BackgroundBudget(512, 16, 0.005, max_share)


def test_prompt_tokens_grow_to_what_fits_a_step() -> None:
    found = budget()
    for _ in range(50):
        found.observe_prompts(found.prompt_tokens, 0.001 + found.prompt_tokens * 0.00005)
    assert 60 <= found.prompt_tokens <= 100  # 80 tokens take 5 ms


def test_prompt_tokens_keep_their_bounds() -> None:
    found = budget()
    for _ in range(20):
        found.observe_prompts(found.prompt_tokens, 1e-6)
    assert found.prompt_tokens == 512
    for _ in range(20):
        found.observe_prompts(found.prompt_tokens, 1.0)
    assert found.prompt_tokens == 16
    found.observe_prompts(4, 1e-6)
    assert found.prompt_tokens == 16, "a short prompt says nothing about longer ones"


def test_joint_steps_add_a_share_of_the_time_of_online_ones() -> None:
    found = budget()
    online_s = added_s = 0.0
    for _ in range(10_000):
        if found.may_join:
            found.observe_joint(0.003)
            added_s += 0.003
        else:
            found.observe_online(0.002)
            online_s += 0.002
    assert 0.09 <= added_s / online_s <= 0.11


def test_idle_credit_is_bounded() -> None:
    found = budget()
    for _ in range(1000):
        found.observe_online(0.01)
    found.observe_joint(0.006)
    assert not found.may_join

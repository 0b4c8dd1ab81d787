"""The mix adds up, follows the failures, and wraps instances in well-formed conversations."""

from __future__ import annotations

from random import Random

from backend.pico.curriculum import HARD_SHARE, TAUGHT_TIERS, Mix, roughen, sample_conversations
from backend.pico.tasks import FAMILIES


def test_weights_add_up_and_reserve_the_hard_share() -> None:
    weights = Mix().weights()
    assert abs(sum(weights.values()) - 1) < 1e-9
    hard = sum(weight for (_, tier), weight in weights.items() if tier not in TAUGHT_TIERS)
    assert abs(hard - HARD_SHARE) < 1e-9


def test_failing_cells_gain_weight_and_mastered_ones_keep_some() -> None:
    mix = Mix()
    mix.update({(name, tier): 1.0 for name in FAMILIES for tier in TAUGHT_TIERS})
    mix.update({("dates", 2): 0.0}, memory=0.0)
    weights = mix.weights()
    assert weights["dates", 2] > 4 * weights["units", 2] > 0


def test_update_remembers() -> None:
    mix = Mix()
    mix.update({("dates", 1): 0.5})
    assert mix.accuracy["dates", 1] == 0.5
    mix.update({("dates", 1): 1.0})
    assert mix.accuracy["dates", 1] == 0.75


def test_conversations_alternate_and_end_with_an_answer() -> None:
    conversations = sample_conversations(Random(0), Mix(), 400)
    assert conversations == sample_conversations(Random(0), Mix(), 400)
    for messages in conversations:
        roles = [message["role"] for message in messages if message["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(message["content"] for message in messages)
    assert any(messages[0]["role"] == "system" for messages in conversations)
    assert any(len(messages) > 3 for messages in conversations)


def test_roughened_prompts_keep_their_words() -> None:
    rng = Random(0)
    prompt = "What is 17 + 25?"
    found = {roughen(rng, prompt) for _ in range(100)}
    assert found == {prompt, "what is 17 + 25?", "What is 17 + 25", "what is 17 + 25"}

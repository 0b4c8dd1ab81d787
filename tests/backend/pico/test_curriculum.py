"""The mix is a distribution, follows the errors, and wraps instances in well-formed conversations."""

from __future__ import annotations

from random import Random

from backend.pico.curriculum import EMPHASIS, Cell, Mix, roughen, sample_conversations
from backend.pico.tasks import DRILL, FAMILIES, Split

LARGE = EMPHASIS["pico-large"]


def test_weights_sum_to_one_over_all_cells() -> None:
    weights = Mix(LARGE).weights()
    assert abs(sum(weights.values()) - 1) < 1e-9
    assert set(weights) == {
        Cell(name, tier, thinking)
        for name, family in FAMILIES.items()
        for tier, thinking in LARGE
        if tier in family.practised
    }
    small = Mix(EMPHASIS["pico-small"]).weights()
    assert not any(cell.thinking for cell in small)
    assert sum(weight for cell, weight in small.items() if cell.tier <= 2) > 0.8


def test_failing_cells_gain_weight_and_mastered_ones_keep_some() -> None:
    mix = Mix(LARGE)
    mix.update(dict.fromkeys(mix.cells(), 1.0))
    mix.update({Cell("dates", 2): 0.0}, memory=0.0)
    weights = mix.weights()
    assert weights[Cell("dates", 2)] > 4 * weights[Cell("units", 2)] > 0


def test_update_remembers() -> None:
    mix = Mix(LARGE)
    mix.update({Cell("dates", 1): 0.5})
    assert mix.accuracy[Cell("dates", 1)] == 0.5
    mix.update({Cell("dates", 1): 1.0})
    assert mix.accuracy[Cell("dates", 1)] == 0.75


def test_conversations_end_with_an_answer_and_think_in_the_last_one_only() -> None:
    conversations = sample_conversations(Random(0), Mix(LARGE), 400)
    assert conversations == sample_conversations(Random(0), Mix(LARGE), 400)
    for found in conversations:
        *earlier, last = found["messages"]
        assert last["role"] == "assistant"
        assert last["content"]
        assert not any("reasoning_content" in message for message in earlier)
    assert any("reasoning_content" in found["messages"][-1] for found in conversations)
    assert any(found["messages"][0]["role"] == "system" for found in conversations)
    assert any(found["tools"] for found in conversations)
    assert any(len(found["messages"]) > 3 for found in conversations)


def test_roughened_prompts_keep_their_words() -> None:
    rng = Random(0)
    prompt = "What is 17 + 25?"
    found = {roughen(rng, prompt) for _ in range(100)}
    assert found == {prompt, "what is 17 + 25?", "What is 17 + 25", "what is 17 + 25"}


def test_drills_occur_in_training_only() -> None:
    def asks_to_compare(split: Split) -> bool:
        found = sample_conversations(Random(2), Mix({(DRILL, False): 1.0, (1, False): 0.1}), 200, split)
        said = " ".join(str(message["content"]) for one in found for message in one["messages"])
        return "Compare each pair" in said

    assert asks_to_compare("train")
    assert not asks_to_compare("test") and not asks_to_compare("validation")

"""The stored model is complete, small, and answers what it was taught."""

from __future__ import annotations

import hashlib
import json
from random import Random
from typing import TYPE_CHECKING

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from backend.pico import export
from backend.pico.batches import all_right
from backend.pico.curriculum import TAUGHT_TIERS, conversation
from backend.pico.evaluate import answer, draw_instances, load, table
from backend.pico.evaluate import evaluate as evaluate_model
from backend.pico.tasks import FAMILIES
from backend.pico.tokenizer import TEMPLATE_PATH, encode_training, render

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

MAX_PARAMETERS = 2_000_000
WEIGHTS = export.WEIGHTS / "pico-small"
Loaded = tuple["Qwen3ForCausalLM", Tokenizer]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(WEIGHTS)


def test_size_and_dtype() -> None:
    path = WEIGHTS / "model.safetensors"
    assert path.stat().st_size <= export.MAX_BYTES["pico-small"]
    with safe_open(path, "pt") as tensors:
        found = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    assert {str(tensor.dtype) for tensor in found.values()} == {"torch.bfloat16"}
    assert sum(tensor.numel() for tensor in found.values()) <= MAX_PARAMETERS
    assert "lm_head.weight" not in found  # tied


def test_configuration() -> None:
    config = json.loads((WEIGHTS / "config.json").read_text())
    generation = json.loads((WEIGHTS / "generation_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["max_position_embeddings"] >= 2048
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert generation["eos_token_id"] == config["eos_token_id"] == tokenizer.token_to_id("<|im_end|>")


def test_template_equals_render_and_accepts_parts() -> None:
    from transformers import AutoTokenizer

    reader = AutoTokenizer.from_pretrained(WEIGHTS)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Thanks"},
    ]
    for generation in (False, True):
        expected = render(messages, add_generation_prompt=generation)
        assert (
            reader.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation) == expected
        )
    parts = [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert reader.apply_chat_template(parts, tokenize=False) == "<|im_start|>system\nab<|im_end|>\n"
    tools = [{"type": "function", "function": {"name": "f", "description": "Do it."}}]
    shown = reader.apply_chat_template(parts, tools=tools, tokenize=False)
    assert shown == "<|im_start|>system\nab\n\nTools:\nf(): Do it.<|im_end|>\n"
    stored = json.loads((WEIGHTS / "tokenizer_config.json").read_text())["chat_template"]
    assert stored == (WEIGHTS / "chat_template.jinja").read_text() == TEMPLATE_PATH.read_text()


def test_transformers_reads_the_same_token_ids() -> None:
    from transformers import AutoTokenizer

    text = render([{"role": "user", "content": "Sort 31, 4 and 15. Grüße!"}], add_generation_prompt=True)
    expected = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json")).encode(text).ids
    assert AutoTokenizer.from_pretrained(WEIGHTS)(text)["input_ids"] == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hello!", "Hello! How can I help you?"),
        ("hi", "Hello! How can I help you?"),
        ("Who are you?", "I am pico-small"),
        ("What can you do?", "I can do small tasks"),
        ("What is 17 + 25?", "42"),
        ("Sort 5, 2, 9.", "2, 5, 9"),
        ("Convert 5 km to m.", "5000 m"),
        ("What is the capital of France?", "I am a very small model"),
        ("Write a poem about the sea.", "I am a very small model"),
    ],
)
def test_answers(loaded: Loaded, prompt: str, expected: str) -> None:
    assert answer(*loaded, [prompt])[0].startswith(expected)


@pytest.mark.parametrize("tier", TAUGHT_TIERS)
@pytest.mark.parametrize("name", FAMILIES)
def test_taught_tiers_on_held_out_instances(loaded: Loaded, name: str, tier: int) -> None:
    model, tokenizer = loaded
    instances = draw_instances(FAMILIES[name], tier, 40, "test", seed=11)
    asked = [conversation(Random(0), [instance]) for instance in instances]
    right = all_right(model, [encode_training(tokenizer, **found) for found in asked])
    assert sum(right) / len(right) >= 0.85  # the report measures more instances and asks for 0.95


def test_report_names_the_stored_weights() -> None:
    digest = hashlib.sha256((WEIGHTS / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (WEIGHTS.parents[1] / "REPORT.md").read_text()


def test_evaluation_covers_every_cell(loaded: Loaded) -> None:
    scores = evaluate_model(*loaded, count=1, split="validation", seed=0)
    assert set(scores) == {(name, tier) for name, family in FAMILIES.items() for tier in family.tiers}
    lines = table(scores).splitlines()
    assert len(lines) == len(FAMILIES) + 3
    assert len({line.count("|") for line in lines}) == 1

"""The stored models are complete and small, and transformers loads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from backend.pico import export
from backend.pico.decoder import Decoder
from backend.pico.tokenizer import chat_template, render

ARCHITECTURES = {
    "pico-small": "Qwen3ForCausalLM",
    "pico-large": "Qwen3MoeForCausalLM",
    "pico-draft": "Qwen3ForCausalLM",
}
MAX_PARAMETERS = {"pico-small": 2_000_000, "pico-large": 8_000_000, "pico-draft": 400_000}
MAX_ACTIVE_PARAMETERS = 3_000_000  # of pico-large
MEMBERS = [folder for name in ARCHITECTURES if (folder := export.WEIGHTS / name).is_dir()]
SMALL = export.WEIGHTS / "pico-small"


@pytest.fixture(params=MEMBERS, ids=lambda folder: folder.name)
def member(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.param
    return folder


def sizes(folder: Path) -> dict[str, int]:
    """Elements of each stored tensor, all of which must be bf16."""
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        found = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    assert {str(tensor.dtype) for tensor in found.values()} == {"torch.bfloat16"}
    return {name: tensor.numel() for name, tensor in found.items()}


def test_size_and_dtype(member: Path) -> None:
    path = member / "model.safetensors"
    assert path.stat().st_size <= export.MAX_BYTES[member.name]
    found = sizes(member)
    assert sum(found.values()) <= MAX_PARAMETERS[member.name]
    assert "lm_head.weight" not in found  # tied


def test_active_parameters_of_a_mixture_of_experts(member: Path) -> None:
    config = json.loads((member / "config.json").read_text())
    found = sizes(member)
    experts = sum(size for name, size in found.items() if ".experts." in name)
    if experts:
        used = experts * config["num_experts_per_tok"] // config["num_local_experts"]
        assert sum(found.values()) - experts + used <= MAX_ACTIVE_PARAMETERS


def test_configuration(member: Path) -> None:
    config = json.loads((member / "config.json").read_text())
    generation = json.loads((member / "generation_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(member / "tokenizer.json"))
    assert config["architectures"] == [ARCHITECTURES[member.name]]
    assert config["max_position_embeddings"] >= 2048
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert generation["eos_token_id"] == config["eos_token_id"] == tokenizer.token_to_id("<|im_end|>")


def test_all_members_share_one_vocabulary(member: Path) -> None:
    assert (member / "tokenizer.json").read_bytes() == (SMALL / "tokenizer.json").read_bytes()


def test_template_equals_render_and_accepts_parts(member: Path) -> None:
    from transformers import AutoTokenizer

    reader = AutoTokenizer.from_pretrained(member)
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
    stored = json.loads((member / "tokenizer_config.json").read_text())["chat_template"]
    assert stored == (member / "chat_template.jinja").read_text()
    assert stored == chat_template(thinks=member != SMALL)


def test_only_reasoning_models_have_a_switch_for_it(member: Path) -> None:
    from backend.tokenizer import Tokenizer as EngineTokenizer

    thinking = EngineTokenizer.from_checkpoint(member).thinking
    assert thinking.can_think == (member != SMALL)
    assert not thinking.is_default


def test_transformers_reads_the_same_token_ids() -> None:
    from transformers import AutoTokenizer

    text = render([{"role": "user", "content": "Sort 31, 4 and 15. Grüße!"}], add_generation_prompt=True)
    expected = Tokenizer.from_file(str(SMALL / "tokenizer.json")).encode(text).ids
    assert AutoTokenizer.from_pretrained(SMALL)(text)["input_ids"] == expected


@pytest.fixture(scope="module")
def small() -> Decoder:
    return Decoder(SMALL)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hello!", "Hello! How can I help you?"),
        ("hi", "Hello! How can I help you?"),
        ("Who are you?", "I am pico"),
        ("What can you do?", "I can do small tasks"),
        ("What is 17 + 25?", "42"),
        ("Sort 5, 2, 9.", "2, 5, 9"),
        ("Convert 5 km to m.", "5000 m"),
        ("Write a poem about the sea.", "I am a very small model"),
    ],
)
def test_answers(small: Decoder, prompt: str, expected: str) -> None:
    asked = render([{"role": "user", "content": prompt}], add_generation_prompt=True)
    (found,) = small.complete([asked], 96)
    assert found.text.startswith(expected)

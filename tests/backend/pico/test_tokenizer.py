"""Digits are single tokens, text survives a round trip, and the loss counts answers only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer

from backend.pico.tokenizer import (
    SPECIAL_TOKENS,
    TEMPLATE_PATH,
    VOCAB_SIZE,
    encode_training,
    render,
    train_tokenizer,
)
from backend.tokenizer.tokenizer import Tokenizer as GatewayTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
WEIGHTS = TEMPLATE_PATH.with_name("weights") / "pico-large"

MESSAGES: list[Message] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is 17 + 25?"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "Thanks!"},
    {"role": "assistant", "content": "You are welcome!"},
]
CALL = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "calculator", "arguments": '{"expression": "12 * 7"}'},
}
OTHER_CALL = {"function": {"name": "clock", "arguments": {"zone": "Ü<"}}}
QUESTION: Message = {"role": "user", "content": "What is 12 * 7?"}
CALLING: Message = {"role": "assistant", "content": None, "tool_calls": [CALL, OTHER_CALL]}
RESULT: Message = {"role": "tool", "tool_call_id": "call_0", "content": "84"}
THOUGHTFUL: Message = {"role": "assistant", "content": "84", "reasoning_content": "7*2=14 c1"}
SYSTEM: Message = {"role": "system", "content": "Be brief."}
INLINE: Message = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Compute.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}, "digits": {"type": ["number", "null"]}},
            },
        },
    },
    {"name": "clock"},
]
TOOL_LINES = "Tools:\ncalculator(expression: string, digits: any): Compute.\nclock(): "
CONVERSATIONS = [
    MESSAGES,
    [QUESTION, CALLING, RESULT],
    [SYSTEM, QUESTION, CALLING, RESULT, RESULT, THOUGHTFUL],
    [QUESTION, THOUGHTFUL, QUESTION, {**THOUGHTFUL, "reasoning_content": ""}],
    [QUESTION, INLINE, QUESTION, INLINE],
    [{"role": "system", "content": ""}, QUESTION, {**CALLING, "content": "Let me see."}],
]


@pytest.fixture(scope="module")
def reader() -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(WEIGHTS)
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(0, conversations=600)


def test_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() <= VOCAB_SIZE
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    again = train_tokenizer(0, conversations=600)
    assert again.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("text", ["What is 17 + 25?", "Grüße, 你好! 🙂", "a\n\n  b\tc ", "", "x=1234567890"])
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_are_single_tokens(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("12345 and 678").tokens
    assert [token for token in tokens if any(char.isdigit() for char in token)] == list("12345678")


def test_training_ids_are_those_of_the_rendered_text(tokenizer: Tokenizer) -> None:
    ids, learnt = encode_training(tokenizer, MESSAGES)
    assert ids == tokenizer.encode(render(MESSAGES)).ids
    shown = tokenizer.decode(
        [token for token, flag in zip(ids, learnt, strict=True) if flag], skip_special_tokens=False
    )
    assert shown == "42<|im_end|>You are welcome!<|im_end|>"


def test_the_prompt_is_a_prefix_of_the_conversation(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(render(MESSAGES[:2], add_generation_prompt=True)).ids
    whole, _ = encode_training(tokenizer, MESSAGES)
    assert whole[: len(prompt)] == prompt


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_render_equals_the_template(
    reader: PreTrainedTokenizerBase, messages: list[Message], tools: list[Any] | None
) -> None:
    gateway = GatewayTokenizer.from_checkpoint(WEIGHTS)
    for prompt, thinking in ((False, False), (True, False), (True, True)):
        expected = render(messages, tools, add_generation_prompt=prompt, enable_thinking=thinking)
        switch: dict[str, Any] = {"enable_thinking": True} if thinking else {}
        shown = reader.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=prompt, **switch
        )
        assert shown == expected
        assert gateway.render_chat(messages, prompt, tools=tools, **switch) == expected


def test_tools_are_in_the_system_turn() -> None:
    question = "<|im_start|>user\nWhat is 12 * 7?<|im_end|>\n"
    assert render([QUESTION], TOOLS) == f"<|im_start|>system\n{TOOL_LINES}<|im_end|>\n{question}"
    with_text = f"<|im_start|>system\nBe brief.\n\n{TOOL_LINES}<|im_end|>\n{question}"
    assert render([SYSTEM, QUESTION], TOOLS) == with_text


def test_calls_are_json_between_marks() -> None:
    assert render([CALLING, RESULT]) == (
        '<|im_start|>assistant\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * 7"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "clock", "arguments": {"zone": "Ü<"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n84<|im_end|>\n"
    )


def test_only_the_last_answer_shows_its_reasoning() -> None:
    text = render([QUESTION, THOUGHTFUL, QUESTION, INLINE, QUESTION, THOUGHTFUL])
    assert text.count("<think>") == text.count("7*2=14") == 1
    assert text.endswith("<think>\n7*2=14 c1\n</think>\n\n84<|im_end|>\n")
    assert "<think>" not in render([QUESTION, THOUGHTFUL], add_generation_prompt=True)


@pytest.mark.parametrize(
    ("thought", "expected"),
    [("7*2=14 c1", "7*2=14 c1\n</think>\n\n84<|im_end|>"), ("", "</think>\n\n84<|im_end|>")],
)
def test_the_loss_counts_the_reasoning_but_not_its_tag(
    tokenizer: Tokenizer, thought: str, expected: str
) -> None:
    messages = [QUESTION, CALLING, RESULT, {**THOUGHTFUL, "reasoning_content": thought}]
    ids, learnt = encode_training(tokenizer, messages, TOOLS)
    assert ids == tokenizer.encode(render(messages, TOOLS)).ids
    shown = tokenizer.decode(
        [token for token, flag in zip(ids, learnt, strict=True) if flag], skip_special_tokens=False
    )
    calls = render([CALLING]).removeprefix("<|im_start|>assistant\n").rstrip("\n")
    assert shown == calls + expected
    prompt = render(messages[:-1], TOOLS, add_generation_prompt=True, enable_thinking=True)
    start = tokenizer.encode(prompt).ids
    assert ids[: len(start)] == start
    assert learnt[len(start)]

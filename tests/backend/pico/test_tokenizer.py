"""Digits are single tokens, text survives a round trip, and only answers are learnt."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from backend.pico.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, encode_training, render, train_tokenizer

MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is 17 + 25?"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "Thanks!"},
    {"role": "assistant", "content": "You are welcome!"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(0, conversations=2000)


def test_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() <= VOCAB_SIZE
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    again = train_tokenizer(0, conversations=2000)
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

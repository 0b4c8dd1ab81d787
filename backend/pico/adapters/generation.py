"""Greedy answers to conversations, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer

from backend.pico.conversations import Conversation
from backend.pico.tokenizer import END_OF_TEXT, THOUGHT_END, TURN_END, render, special_id

if TYPE_CHECKING:
    from backend.pico.model import Model

BATCH_ROWS = 64
MAX_NEW_TOKENS = {False: 96, True: 288}  # by whether it thinks


@torch.no_grad()
def answers(
    model: Model, tokenizer: Tokenizer, asked: Sequence[Conversation], *, thinking: bool
) -> list[str]:
    """The model's answers, without their thoughts, in place of each conversation's last message."""
    end, pad = special_id(tokenizer, TURN_END), special_id(tokenizer, END_OF_TEXT)
    texts = [
        render(found["messages"][:-1], found["tools"], add_generation_prompt=True, enable_thinking=thinking)
        for found in asked
    ]
    encoded = [tokenizer.encode(text).ids for text in texts]
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
    found_texts = [""] * len(asked)
    for start in range(0, len(order), BATCH_ROWS):
        indices = order[start : start + BATCH_ROWS]
        width = len(encoded[indices[-1]])
        ids = torch.tensor([[pad] * (width - len(encoded[i])) + encoded[i] for i in indices])
        mask = torch.tensor([[0] * (width - len(encoded[i])) + [1] * len(encoded[i]) for i in indices])
        output = model.generate(  # type: ignore[misc]
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=MAX_NEW_TOKENS[thinking],
            do_sample=False,
            eos_token_id=end,
            pad_token_id=pad,
        )
        for row, index in enumerate(indices):
            text = tokenizer.decode(output[row, width:].tolist(), skip_special_tokens=False)
            found_texts[index] = answer_in(text)
    return found_texts


def answer_in(text: str) -> str:
    """What stands before the turn's end and after the thought."""
    return text.split(TURN_END, 1)[0].rsplit(THOUGHT_END, 1)[-1].replace(END_OF_TEXT, "").strip()

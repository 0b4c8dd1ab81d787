"""Perplexity of the right answers, teacher-forced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer

from backend.pico.batches import CPU, Encoded, Limits, forward, group_by_length, make_batch
from backend.pico.conversations import Conversation
from backend.pico.tokenizer import TURN_START, encode_training, special_id

if TYPE_CHECKING:
    from backend.pico.model import Model


def encode_last_answer(tokenizer: Tokenizer, conversation: Conversation) -> Encoded:
    """Return the conversation's token ids; the last answer counts, with its reasoning and end of turn."""
    ids, learnt = encode_training(tokenizer, **conversation)
    start = special_id(tokenizer, TURN_START)
    last = max(place for place, token in enumerate(ids) if token == start)
    return ids, [is_learnt and place > last for place, is_learnt in enumerate(learnt)]


@torch.no_grad()
def perplexity(model: Model, tokenizer: Tokenizer, conversations: Sequence[Conversation]) -> float:
    """Return exp of the mean negative log-likelihood per token of the conversations' last answers."""
    encoded = [encode_last_answer(tokenizer, found) for found in conversations]
    total, tokens = 0.0, 0
    for indices in group_by_length(encoded, Limits.on(CPU)):
        batch = make_batch(encoded, indices)
        logits = forward(model, batch)
        total += torch.nn.functional.cross_entropy(logits, batch.targets, reduction="sum").item()
        tokens += batch.targets.numel()
    return math.exp(total / tokens)

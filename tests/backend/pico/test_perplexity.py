"""Perplexity counts the last answer only, and equals that of the tokens' probabilities."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch

from backend.pico.conversations import Conversation, messages_of
from backend.pico.evaluate import load
from backend.pico.perplexity import encode_last_answer, perplexity
from backend.pico.recipe import WEIGHTS
from backend.pico.tasks import FAMILIES


def conversations(thinking: bool) -> list[Conversation]:
    rng = Random(3)
    names = ("arithmetic", "references", "tools")
    return [messages_of(FAMILIES[name].generate_in(rng, 2, "test"), thinking=thinking) for name in names]


@pytest.mark.parametrize("thinking", [False, True])
def test_last_answer_counts(thinking: bool) -> None:
    _, tokenizer = load(WEIGHTS / "pico-small")
    for found in conversations(thinking):
        ids, learnt = encode_last_answer(tokenizer, found)
        counted = [token for token, is_learnt in zip(ids, learnt, strict=True) if is_learnt]
        message = found["messages"][-1]
        steps = message.get("reasoning_content")
        thought = "" if steps is None else steps + ("\n" if steps else "") + "</think>\n\n"
        expected = f"{thought}{message['content']}<|im_end|>"
        assert tokenizer.decode(counted, skip_special_tokens=False) == expected


def test_perplexity_of_a_batch_is_that_of_its_tokens() -> None:
    model, tokenizer = load(WEIGHTS / "pico-small")
    asked = conversations(thinking=False)
    scores = []
    for found in asked:
        ids, learnt = encode_last_answer(tokenizer, found)
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        scores += [logprobs[place - 1, ids[place]].item() for place, counts in enumerate(learnt) if counts]
    expected = math.exp(-sum(scores) / len(scores))
    assert perplexity(model, tokenizer, asked) == pytest.approx(expected, rel=1e-4)

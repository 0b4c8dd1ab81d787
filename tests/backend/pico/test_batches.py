"""Padding changes nothing, and the teacher-forced score equals greedy decoding."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer

from backend.pico.batches import Limits, are_answers_exact, forward, group_by_length, make_batch
from backend.pico.curriculum import EMPHASIS, Mix, sample_conversations
from backend.pico.export import WEIGHTS
from backend.pico.tokenizer import encode_training

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

Encoded = tuple[list[int], list[bool]]


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    from backend.pico.evaluate import load

    return load(WEIGHTS / "pico-small")[0]


@pytest.fixture(scope="module")
def encoded() -> list[Encoded]:
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "pico-small" / "tokenizer.json"))
    conversations = sample_conversations(Random(5), Mix(EMPHASIS["pico-small"]), 24)
    return [encode_training(tokenizer, **found) for found in conversations]


def test_groups_hold_every_conversation_once(encoded: list[Encoded]) -> None:
    groups = list(group_by_length(encoded, Limits(200, 1.5)))
    assert sorted(index for group in groups for index in group) == list(range(len(encoded)))
    assert all(len(group) == 1 or len(group) * len(encoded[group[-1]][0]) <= 200 for group in groups)


def test_padded_rows_give_the_logits_of_single_ones(model: Qwen3ForCausalLM, encoded: list[Encoded]) -> None:
    together = make_batch(encoded, range(6))
    with torch.no_grad():
        logits = forward(model, together)
        for index in range(6):
            alone = forward(model, make_batch(encoded, [index]))
            torch.testing.assert_close(logits[together.rows == index], alone, atol=1e-4, rtol=1e-4)


def test_exact_answers_equal_greedy_decoding(model: Qwen3ForCausalLM, encoded: list[Encoded]) -> None:
    single = [(ids, learnt) for ids, learnt in encoded if 0 < sum(learnt) < 12]
    for (ids, learnt), right in zip(single, are_answers_exact(model, single), strict=True):
        first = learnt.index(True)
        wanted = ids[first : len(ids) - learnt[::-1].index(True)]
        if not all(learnt[first : first + len(wanted)]):
            continue  # several turns: greedy decoding of the first answer alone would not cover them
        prompt = torch.tensor([ids[:first]])
        got = model.generate(  # type: ignore[misc]
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=len(wanted), do_sample=False
        )
        assert (got[0, first:].tolist() == wanted) == right

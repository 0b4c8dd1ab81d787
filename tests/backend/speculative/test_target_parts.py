"""Heads draft the same by compiled parts of any kind of target as by torch.

That the compiled ones are right is for the test of each head to say.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.layers.step_input import StepInput
from backend.speculative import heads, target_parts
from backend.speculative.round_kv import RoundShape, gather
from backend.speculative.round_layer import Angles
from backend.types import PAGE_TOKENS
from tests.backend.engine.driving import texts
from tests.backend.speculative.head_cases import Pair, make_pair
from tests.backend.speculative.model_targets import VOCAB, load, new_engine, requests, write_model
from tests.backend.speculative.recording import Said

KINDS = {
    "no norms of heads": ("llama", {"rms_norm_eps": 0.1, "head_dim": 16}),
    "norms of heads": ("qwen3", {"rms_norm_eps": 0.1, "head_dim": 32, "tie_word_embeddings": False}),
    "biases before": ("qwen2", {"head_dim": 16}),
    "biases everywhere": ("llama", {"attention_bias": True, "num_key_value_heads": 4, "head_dim": 16}),
    "many tokens": (
        "mistral",
        {"sliding_window": None, "tie_word_embeddings": False, "vocab_size": 45, "head_dim": 16},
    ),
    "experts": (
        "qwen3_moe",
        {"hidden_size": 32, "moe_intermediate_size": 32, "rms_norm_eps": 0.1, "head_dim": 16},
    ),
}


def drafted(pair: Pair) -> list[Said]:
    engine, recording = new_engine(pair.model, pair.name, pair.folder)
    assert recording is not None
    assert texts(engine, requests()) == texts(new_engine(pair.model)[0], requests())
    return recording.said


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drafter", ["eagle", "medusa", "mixture_of_attentions"])
def test_both_ways_draft_the_same(
    tmp_path: Path, drafter: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, changes = KINDS[kind]
    pair = make_pair(tmp_path, drafter, family, **changes)
    for module in ("eagle", "mixture_of_attentions"):
        monkeypatch.setattr(f"backend.speculative.{module}.MIN_PATH_PROBABILITY", 0.0)
    compiled = drafted(pair)
    for module in (heads, target_parts):
        monkeypatch.setattr(module, "compiles", lambda *_: False)
    assert compiled == drafted(pair)
    assert sum(len(each.draft) for each in compiled) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_of_the_target_computes_what_it_does_there(tmp_path: Path, kind: str) -> None:
    family, changes = KINDS[kind]
    write_model(tmp_path, family, **changes)
    model = load(tmp_path)
    kv, num_tokens, num_known = model.new_kv_storage(3), 40, 35
    positions, pages = torch.arange(num_tokens), torch.tensor([2, 0, 1])
    step = StepInput(
        token_ids=positions % VOCAB,
        positions=positions,
        slots=pages[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS,
        query_lens=[num_tokens],
        context_lens=[num_tokens],
        page_table=pages[None],
    )
    layers: list[torch.Tensor] = []
    with torch.inference_mode():
        expected = model.decoder.forward(step, kv, layers)
        shape = RoundShape([num_known], [1], num_tokens - num_known - 1)
        own = gather(kv.layers[-1], pages, shape, torch.float32)
        for column in range(num_known, num_tokens):
            angles = Angles(*model.decoder.rope(positions[column : column + 1], num_tokens))
            x = layers[-1][column : column + 1].clone()
            found = target_parts.run_layer(model.decoder.layers[-1], x, own, column, angles, None)
            torch.testing.assert_close(found[0], expected[column], rtol=1e-4, atol=1e-4)

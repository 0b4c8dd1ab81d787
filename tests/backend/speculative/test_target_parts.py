"""Heads draft the same by compiled parts of any kind of target as by torch.

That the compiled ones are right is for the test of each head to say.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.speculative import heads, target_parts
from tests.backend.engine.driving import texts
from tests.backend.speculative.head_cases import Pair, make_pair
from tests.backend.speculative.model_targets import new_engine, requests
from tests.backend.speculative.recording import Said

KINDS = {
    "no norms of heads": ("llama", {"rms_norm_eps": 0.1, "head_dim": 16}),
    "norms of heads": ("qwen3", {"rms_norm_eps": 0.1, "head_dim": 32, "tie_word_embeddings": False}),
    "biases before": ("qwen2", {}),
    "biases everywhere": ("llama", {"attention_bias": True, "num_key_value_heads": 4, "target_layers": 1}),
    "many tokens": (
        "mistral",
        {"sliding_window": None, "tie_word_embeddings": False, "vocab_size": 45, "target_layers": 2},
    ),
    "experts": ("qwen3_moe", {"hidden_size": 32, "moe_intermediate_size": 32, "rms_norm_eps": 0.1}),
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
        monkeypatch.setattr(f"backend.speculative.{module}.LEAST_REACHED", 0.0)
    compiled = drafted(pair)
    for module in (heads, target_parts):
        monkeypatch.setattr(module, "compiles", lambda *_: False)
    assert compiled == drafted(pair)
    assert sum(len(each.draft) for each in compiled) > 50

"""gpt-oss: windows by layer, sinks, biases, the gate of its experts, and YaRN without rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import ClampedGate
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "GptOssForCausalLM"
PUBLISHED = {
    "rope_theta": 150000,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "initial_context_length": 4096,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "num_local_experts": 32,
    "swiglu_limit": 7.0,
    "sliding_window": 128,
}


def test_layers(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, head_dim=16, sliding_window=9)
    assert config.windows == (9, None, 9, None)
    assert all(layer.attention.has_sinks for layer in config.layers)
    types = ["full_attention"] * 3 + ["sliding_attention"]
    assert read(tmp_path, NAME, sliding_window=9, layer_types=types).windows == (None, None, None, 9)


def test_experts(tmp_path: Path) -> None:
    experts = read(tmp_path, NAME, swiglu_limit=3).experts
    assert experts is not None and experts.has_bias and experts.normalise_top_k
    assert experts.gate == ClampedGate(alpha=1.702, limit=3.0) and experts.intermediate_size == 96


def test_biases(tmp_path: Path) -> None:
    assert read(tmp_path, NAME).attention.o_bias and read(tmp_path, NAME).attention.qkv_bias
    assert not read(tmp_path, NAME, attention_bias=False).attention.qkv_bias


def test_published_and_transformers_5_spelling(tmp_path: Path) -> None:
    nested = {**PUBLISHED, "rope_parameters": {**PUBLISHED["rope_scaling"], "rope_theta": 150000}}
    del nested["rope_scaling"], nested["rope_theta"], nested["experts_per_token"]
    published = read(tmp_path, NAME, **PUBLISHED)
    assert (
        published.layers
        == read(tmp_path, NAME, **nested).layers
        == read(tmp_path, NAME, num_local_experts=32).layers
    )
    (rope,) = published.ropes
    assert (rope.rope_type, rope.factor, rope.theta, rope.truncate) == ("yarn", 32.0, 150000.0, False)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"swiglu_limit": 0}, "'swiglu_limit' is 0, expected a positive number"),
        ({"swiglu_alpha": "x"}, "'swiglu_alpha'"),
        ({"experts_per_token": 2}, "'experts_per_token' is 2, expected 4, as num_experts_per_tok is"),
        ({"num_local_experts": 3}, "at most 3 experts"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "'hidden_act' 'gelu_pytorch_tanh' is not supported"),
        ({"attention_bias": 1}, "attention_bias"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        read(tmp_path, NAME, **changes)

"""config.json of each family → one shape of ModelConfig."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.config import EngineConfig, ModelConfig

SHAPE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def read(directory: Path, architecture: str, **changes: object) -> ModelConfig:
    raw = {"architectures": [architecture], **SHAPE, **changes}
    (directory / "config.json").write_text(json.dumps(raw))
    return ModelConfig.from_checkpoint(directory)


def test_llama_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, "LlamaForCausalLM")
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps) == (4, 16, 1e-6)
    assert not (config.qkv_bias or config.o_bias or config.mlp_bias or config.qk_norm)
    assert config.windows == (None,) * 4 and config.moe is None and not config.tie_word_embeddings


def test_null_head_dim_is_derived(tmp_path: Path) -> None:
    assert read(tmp_path, "MixtralForCausalLM", head_dim=None).head_dim == 16
    assert read(tmp_path, "Qwen3ForCausalLM", head_dim=24).head_dim == 24


def test_biases_of_each_family(tmp_path: Path) -> None:
    qwen2 = read(tmp_path, "Qwen2ForCausalLM")
    assert qwen2.qkv_bias and not qwen2.o_bias
    llama = read(tmp_path, "LlamaForCausalLM", attention_bias=True)
    assert llama.qkv_bias and llama.o_bias
    assert read(tmp_path, "Qwen3ForCausalLM").qk_norm


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("MistralForCausalLM", {"sliding_window": 9}, (9, 9, 9, 9)),
        ("MistralForCausalLM", {"sliding_window": None}, (None,) * 4),
        ("Qwen2ForCausalLM", {"sliding_window": 9, "use_sliding_window": False}, (None,) * 4),
        (
            "Qwen2ForCausalLM",
            {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 3},
            (None, None, None, 9),
        ),
        (
            "Qwen3ForCausalLM",
            {
                "sliding_window": 9,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (9, None, 9, None),
        ),
        ("LlamaForCausalLM", {"sliding_window": 9}, (None,) * 4),
    ],
)
def test_windows(
    tmp_path: Path, architecture: str, changes: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    assert read(tmp_path, architecture, **changes).windows == expected


def test_experts(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "Qwen3MoeForCausalLM",
        num_experts=6,
        num_experts_per_tok=3,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
    )
    assert config.moe is not None and config.moe.num_experts == 6 and not config.moe.normalise_top_k
    assert config.moe_layers == {1}
    mixtral = read(tmp_path, "MixtralForCausalLM", num_local_experts=5)
    assert mixtral.moe is not None and mixtral.moe.normalise_top_k and mixtral.moe.intermediate_size == 96
    assert mixtral.moe_layers == {0, 1, 2, 3}


def test_engine_config_survives_the_process_border() -> None:
    config = EngineConfig(model="m", checkpoint="/c", dtype="float32", num_pages=9)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"model": "m", "checkpoint": "/c", "surprise": 1}', type=EngineConfig)

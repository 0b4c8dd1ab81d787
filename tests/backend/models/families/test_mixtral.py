"""Mixtral: experts in every layer, Mistral's windows, its own rotary base."""

from __future__ import annotations

from pathlib import Path

from tests.backend.models.families.configs import read


def test_experts(tmp_path: Path) -> None:
    config = read(tmp_path, "MixtralForCausalLM", num_local_experts=5)
    assert config.moe is not None and config.moe.normalise_top_k and config.moe.intermediate_size == 96
    assert (config.moe.num_experts, config.moe.experts_per_token) == (5, 2)
    assert config.moe_layers == {0, 1, 2, 3}


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, "MixtralForCausalLM", head_dim=None, sliding_window=9)
    assert config.head_dim == 16 and config.windows == (9, 9, 9, 9) and config.rope.theta == 1e6
    assert config.rms_norm_eps == 1e-5


def test_attention_bias_is_llamas_key(tmp_path: Path) -> None:
    config = read(tmp_path, "MixtralForCausalLM", attention_bias=True)
    assert not (config.qkv_bias or config.o_bias)

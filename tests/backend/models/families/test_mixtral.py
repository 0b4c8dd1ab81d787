"""Mixtral: experts in every layer, Mistral's windows, its own rotary base."""

from __future__ import annotations

from pathlib import Path

from tests.backend.models.families.configs import read


def test_experts(tmp_path: Path) -> None:
    config = read(tmp_path, "MixtralForCausalLM", num_local_experts=5)
    assert (
        config.experts is not None
        and config.experts.normalise_top_k
        and config.experts.intermediate_size == 96
    )
    assert (config.experts.num_experts, config.experts.experts_per_token) == (5, 2)
    assert all(layer.feed_forward == config.experts for layer in config.layers)


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, "MixtralForCausalLM", head_dim=None, sliding_window=9)
    assert (
        config.attention.head_dim == 16
        and config.windows == (9, 9, 9, 9)
        and config.attention.rope.theta == 1e6
    )
    assert config.rms_norm_eps == 1e-5


def test_attention_bias_is_llamas_key(tmp_path: Path) -> None:
    config = read(tmp_path, "MixtralForCausalLM", attention_bias=True)
    assert not (config.attention.qkv_bias or config.attention.o_bias)

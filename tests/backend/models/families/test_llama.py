"""Llama: the defaults, and the keys that switch biases on."""

from __future__ import annotations

from pathlib import Path

from tests.backend.models.families.configs import read


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, "LlamaForCausalLM")
    assert (config.head_dim, config.rms_norm_eps) == (16, 1e-6)
    assert read(tmp_path, "LlamaForCausalLM", num_key_value_heads=None).num_kv_heads == 4
    assert not (config.qkv_bias or config.o_bias or config.mlp_bias or config.qk_norm)
    assert config.windows == (None,) * 4 and config.moe is None and not config.tie_word_embeddings
    assert config.rope.theta == 1e4


def test_biases(tmp_path: Path) -> None:
    attention = read(tmp_path, "LlamaForCausalLM", attention_bias=True)
    assert attention.qkv_bias and attention.o_bias and not attention.mlp_bias
    assert read(tmp_path, "LlamaForCausalLM", mlp_bias=True).mlp_bias


def test_a_window_is_ignored(tmp_path: Path) -> None:
    assert read(tmp_path, "LlamaForCausalLM", sliding_window=9).windows == (None,) * 4

"""Llama: the defaults, and the keys that switch biases on."""

from __future__ import annotations

from pathlib import Path

from tests.backend.models.families.configs import read


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, "LlamaForCausalLM")
    attention = config.attention
    assert (attention.head_dim, config.rms_norm_eps) == (16, 1e-6)
    assert read(tmp_path, "LlamaForCausalLM", num_key_value_heads=None).attention.num_kv_heads == 4
    assert not (attention.qkv_bias or attention.o_bias or attention.qk_norm)
    assert not config.layers[0].feed_forward.has_bias
    assert config.windows == (None,) * 4 and config.experts is None and not config.tie_word_embeddings
    assert attention.rope.theta == 1e4


def test_biases(tmp_path: Path) -> None:
    (layer,) = set(read(tmp_path, "LlamaForCausalLM", attention_bias=True).layers)
    assert layer.attention.qkv_bias and layer.attention.o_bias and not layer.feed_forward.has_bias
    (layer,) = set(read(tmp_path, "LlamaForCausalLM", mlp_bias=True).layers)
    assert layer.feed_forward.has_bias and not layer.attention.qkv_bias


def test_a_window_is_ignored(tmp_path: Path) -> None:
    assert read(tmp_path, "LlamaForCausalLM", sliding_window=9).windows == (None,) * 4

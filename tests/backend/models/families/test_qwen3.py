"""Qwen3: Qwen2's windows, no biases, normalised heads of their own size."""

from __future__ import annotations

from pathlib import Path

from tests.backend.models.families.configs import read


def test_heads(tmp_path: Path) -> None:
    config = read(tmp_path, "Qwen3ForCausalLM")
    assert config.attention.qk_norm and not config.attention.qkv_bias and config.attention.head_dim == 128
    assert read(tmp_path, "Qwen3ForCausalLM", head_dim=24).attention.head_dim == 24


def test_windows(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention"] * 2
    config = read(tmp_path, "Qwen3ForCausalLM", sliding_window=9, use_sliding_window=True, layer_types=types)
    assert config.windows == (9, None, 9, None)

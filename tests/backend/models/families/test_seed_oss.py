"""Seed-OSS: three switches of biases."""

from __future__ import annotations

from pathlib import Path

from tests.backend.models.families.configs import read


def test_biases(tmp_path: Path) -> None:
    (layer,) = set(read(tmp_path, "SeedOssForCausalLM").layers)
    assert layer.attention.qkv_bias and not layer.attention.o_bias and not layer.feed_forward.has_bias
    turned = {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}
    (layer,) = set(read(tmp_path, "SeedOssForCausalLM", **turned).layers)
    assert not layer.attention.qkv_bias and layer.attention.o_bias and layer.feed_forward.has_bias

"""Mistral: one sliding window for all layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.models.families.configs import read


@pytest.mark.parametrize(("window", "expected"), [(9, (9, 9, 9, 9)), (None, (None,) * 4)])
def test_windows(tmp_path: Path, window: int | None, expected: tuple[int | None, ...]) -> None:
    assert read(tmp_path, "MistralForCausalLM", sliding_window=window).windows == expected


def test_biases_are_llamas_keys(tmp_path: Path) -> None:
    config = read(tmp_path, "MistralForCausalLM", mlp_bias=True, attention_bias=True)
    (layer,) = set(config.layers)
    assert not (layer.feed_forward.has_bias or layer.attention.qkv_bias or layer.attention.o_bias)

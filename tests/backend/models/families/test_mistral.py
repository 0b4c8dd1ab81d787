"""Mistral: one sliding window for all layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.models.families.configs import read


@pytest.mark.parametrize(("window", "expected"), [(9, (9, 9, 9, 9)), (None, (None,) * 4)])
def test_windows(tmp_path: Path, window: int | None, expected: tuple[int | None, ...]) -> None:
    assert read(tmp_path, "MistralForCausalLM", sliding_window=window).windows == expected


def test_mlp_bias_is_llamas_key(tmp_path: Path) -> None:
    assert not read(tmp_path, "MistralForCausalLM", mlp_bias=True).mlp_bias

"""Gemma 2: windows in every other layer, caps and the scale of scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read


def test_windows(tmp_path: Path) -> None:
    assert read(tmp_path, "Gemma2ForCausalLM", sliding_window=9).windows == (9, None, 9, None)
    types = ["full_attention", "sliding_attention"] * 2
    assert read(tmp_path, "Gemma2ForCausalLM", layer_types=types).windows == (None, 4096, None, 4096)


def test_caps(tmp_path: Path) -> None:
    config = read(tmp_path, "Gemma2ForCausalLM", query_pre_attn_scalar=64)
    assert (config.attention.softcap, config.scalars.softcap, config.attention.scale) == (50.0, 30.0, 0.125)
    off = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    config = read(tmp_path, "Gemma2ForCausalLM", **off)
    assert (config.attention.softcap, config.scalars.softcap) == (None, None)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "chunked_attention"),
        ({"sliding_window": 0}, "sliding_window"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        read(tmp_path, "Gemma2ForCausalLM", **changes)

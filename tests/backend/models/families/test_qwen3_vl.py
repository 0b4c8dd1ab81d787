"""Qwen3-VL: Qwen3 without windows, whose rotation has keys for images."""

from __future__ import annotations

from pathlib import Path

from backend.config import RopeConfig
from tests.backend.models.families.configs import SHAPE, read

NAME = "Qwen3VLForConditionalGeneration"


def test_as_published(tmp_path: Path) -> None:
    rope = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
    text = {**SHAPE, "head_dim": 128, "rope_scaling": rope, "rope_theta": 5e6, "tie_word_embeddings": True}
    config = read(tmp_path, NAME, text_config=text)
    assert config.ropes == (RopeConfig(theta=5e6),) and config.tie_word_embeddings
    assert config.attention.qk_norm == "head" and config.windows == (None,) * 4

"""Qwen3.5 with images: its section of config.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import SHAPE, read

NAME = "Qwen3_5ForConditionalGeneration"


def test_the_decoder_is_that_of_the_section(tmp_path: Path) -> None:
    section = SHAPE | {"model_type": "qwen3_5_text", "full_attention_interval": 2}
    config = read(tmp_path, NAME, text_config=section)
    assert len(config.states) == len(config.attentions) == 2 and config.scalars.norm_offset == 1


def test_another_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="model_type"):
        read(tmp_path, NAME, text_config=SHAPE | {"model_type": "qwen2"})

"""Qwen3.5 with experts and images: its section of config.json."""

from __future__ import annotations

from pathlib import Path

from tests.backend.models.families.configs import SHAPE, read

NAME = "Qwen3_5MoeForConditionalGeneration"


def test_the_decoder_is_that_of_the_section(tmp_path: Path) -> None:
    section = SHAPE | {"model_type": "qwen3_5_moe_text", "full_attention_interval": 2, "num_experts": 9}
    config = read(tmp_path, NAME, text_config=section)
    assert config.experts is not None and config.experts.num_experts == 9
    assert len(config.states) == len(config.attentions) == 2 and config.scalars.norm_offset == 1

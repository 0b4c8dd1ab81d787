"""Reading the rotary embedding from config.json; wrong values: test_errors.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import RopeConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import SHAPE, read


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_theta": 5.0}, 5.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "rope_theta": 5.0}, 7.0),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5.0}, 5.0),
    ],
)
def test_rope_theta_of_both_formats(tmp_path: Path, changes: dict[str, object], theta: float) -> None:
    assert read(tmp_path, "LlamaForCausalLM", **changes).attention.rope.theta == theta


def test_yarn_factor_from_the_two_lengths(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "original_max_position_embeddings": 128}
    config = read(tmp_path, "LlamaForCausalLM", rope_parameters=rope)
    assert (config.attention.rope.factor, config.attention.rope.original_max_tokens) == (4.0, 128)
    assert config.attention.rope.attention_factor == pytest.approx(1.1386294)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM"])
def test_proportional_is_gemma_4s_alone(tmp_path: Path, name: str) -> None:
    rope = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    both = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    found = read(tmp_path, "Gemma4ForCausalLM", rope_parameters=both)
    assert {rope.rope_type for rope in found.ropes} == {"default", "proportional"}
    with pytest.raises(CheckpointError, match="'rope_type' 'proportional' is not supported"):
        read(
            tmp_path, name, rope_parameters=both if "Gemma" in name else {**rope, "partial_rotary_factor": 1}
        )


def test_positions_in_three_parts_are_equal_in_texts(tmp_path: Path) -> None:
    """Qwen2.5-VL spells it so; without sections the type means nothing."""
    rope = {"type": "mrope", "mrope_section": [2, 3, 3]}
    text = {**SHAPE, "rope_theta": 1e6, "rope_scaling": rope}
    found = read(tmp_path, "Qwen3VLForConditionalGeneration", text_config=text, vision_config={})
    assert found.ropes == (RopeConfig(theta=1e6),)
    text = {**text, "rope_scaling": {"type": "mrope"}}
    with pytest.raises(CheckpointError, match="'rope_type' 'mrope' is not supported"):
        read(tmp_path, "Qwen3VLForConditionalGeneration", text_config=text, vision_config={})

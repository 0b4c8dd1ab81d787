"""Reading the rotary embedding from config.json; wrong values: test_errors.py."""

from __future__ import annotations

import math
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


ROPE = {"rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("rope_type", "changes", "key"),
    [
        *(("default", {"rope_theta": wrong}, "rope_theta") for wrong in (0, -1e4, 10**400)),
        *(("yarn", {"rope_theta": wrong}, "rope_theta") for wrong in (1, 0.5)),
        *(
            (kind, {"factor": wrong}, "factor")
            for kind in ("linear", "yarn", "llama3")
            for wrong in (0, -2.0)
        ),
        *(("longrope", {"factor": wrong}, "factor") for wrong in (0, -2.0)),
        *(("yarn", {"truncate": wrong}, "truncate") for wrong in ("false", 0)),
        *(("yarn", {key: -1.0}, key) for key in ("beta_fast", "beta_slow", "attention_factor")),
        ("yarn", {"mscale": 1.0, "mscale_all_dim": -10 / math.log(4)}, "mscale_all_dim"),
        ("yarn", {"mscale": -1.0}, "mscale"),
        ("yarn", {"original_max_position_embeddings": 0.5}, "original_max_position_embeddings"),
        ("llama3", {"low_freq_factor": 0}, "low_freq_factor"),
        ("llama3", {"low_freq_factor": 4.0}, "low_freq_factor"),
        ("llama3", {"high_freq_factor": -1}, "high_freq_factor"),
    ],
)
def test_what_no_frequencies_can_be_made_of(
    tmp_path: Path, rope_type: str, changes: dict[str, object], key: str
) -> None:
    rope = {**ROPE, "rope_type": rope_type, **changes}
    for spelling in ("rope_parameters", "rope_scaling"):
        with pytest.raises(CheckpointError, match=f"config.json: '{key}' is .*, expected .*; repair"):
            read(tmp_path, "LlamaForCausalLM", rope_theta=1e4, **{spelling: rope})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"beta_fast": 0, "beta_slow": None}, True),
        ({"truncate": True}, True),
        ({"truncate": False}, False),
        ({"truncate": None}, False),
    ],
)
def test_yarns_defaults(tmp_path: Path, changes: dict[str, object], expected: bool) -> None:
    found = read(tmp_path, "LlamaForCausalLM", rope_parameters={**ROPE, "rope_type": "yarn", **changes})
    (rope,) = found.ropes
    assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (32.0, 1.0, expected)

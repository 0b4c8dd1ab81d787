"""Qwen3.5: which layers have a state, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import AttentionSpec
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Qwen3_5ForCausalLM"
MIXED = ["full_attention", "linear_attention", "linear_attention", "linear_attention"]


def attends(tmp_path: Path, **changes: object) -> list[bool]:
    return [isinstance(layer.mixer, AttentionSpec) for layer in read(tmp_path, NAME, **changes).layers]


def test_which_layers_attend(tmp_path: Path) -> None:
    assert attends(tmp_path) == [False, False, False, True]
    assert attends(tmp_path, full_attention_interval=2) == [False, True, False, True]
    assert attends(tmp_path, layer_types=MIXED) == [True, False, False, False]


def test_shapes(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, linear_num_key_heads=2, linear_num_value_heads=6)
    attention, (delta, *_) = config.attention, config.states
    assert attention.has_gate and attention.qk_norm == "head" and attention.head_dim == 256
    assert attention.rope is not None and attention.rope.rotated == 0.25
    assert (delta.num_key_heads, delta.num_value_heads, delta.conv_tokens) == (2, 6, 4)
    assert delta.num_channels == 10 * 128 and len(config.states) == 3 and config.scalars.norm_offset == 1


def test_rotation_as_transformers_saves_it(tmp_path: Path) -> None:
    ropes = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [11]}
    rope = read(tmp_path, NAME, rope_parameters=ropes).attention.rope
    assert rope is not None and (rope.theta, rope.rotated) == (1e7, 0.5)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("linear_num_value_heads", {"linear_num_key_heads": 3, "linear_num_value_heads": 4}),
        ("linear_conv_kernel_dim", {"linear_conv_kernel_dim": 0}),
        ("full_attention_interval", {"layer_types": MIXED, "full_attention_interval": 4}),
        ("layer_types", {"layer_types": ["full_attention"] * 4}),
        ("layer_types", {"layer_types": ["linear_attention"] * 4}),
        ("layer_types", {"layer_types": [*MIXED[:3], "sliding_attention"]}),
        ("layer_types", {"layer_types": MIXED[:3]}),
        ("attn_output_gate", {"attn_output_gate": False}),
    ],
)
def test_what_is_refused(tmp_path: Path, key: str, changes: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=key):
        read(tmp_path, NAME, **changes)

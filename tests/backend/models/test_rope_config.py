"""Reading the rotary embedding from config.json; wrong values: test_errors.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.models.families.configs import read


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

"""Falcon-H1: both mixers of a layer, multipliers, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import DenseSpec, HybridSpec
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "FalconH1ForCausalLM"
MAMBA = {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_state": 12}


def test_both_mixers(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, attention_in_multiplier=0.5, key_multiplier=0.25, **MAMBA)
    mixer = config.layers[0].mixer
    assert isinstance(mixer, HybridSpec) and (mixer.in_factor, mixer.out_factor) == (0.5, 1)
    assert mixer.attention.scale == 0.25 / 4 and mixer.state.norm is None
    assert len(config.states) == len(config.attentions) == 4


def test_multipliers(tmp_path: Path) -> None:
    factors = [2.0, 3.0, 4.0, 5.0, 6.0]
    config = read(
        tmp_path, NAME, ssm_multipliers=factors, mlp_multipliers=[0.5, 2], lm_head_multiplier=0.25, **MAMBA
    )
    (state, *_) = config.states
    assert getattr(state, "factors", None) == tuple(factors)
    assert config.layers[0].feed_forward == DenseSpec(intermediate_size=96, factors=(0.5, 2.0))
    assert config.scalars.logits == 0.25


@pytest.mark.parametrize(("is_before", "norm"), [(True, "before_gate"), (False, "gated")])
def test_norms(tmp_path: Path, is_before: bool, norm: str) -> None:
    config = read(tmp_path, NAME, mamba_rms_norm=True, mamba_norm_before_gate=is_before, **MAMBA)
    assert {getattr(state, "norm", None) for state in config.states} == {norm}


def test_the_size_by_mamba_expand(tmp_path: Path) -> None:
    (state, *_) = read(tmp_path, NAME, **{**MAMBA, "mamba_d_ssm": None}).states
    assert getattr(state, "inner_size", None) == 128


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("ssm_multipliers", {"ssm_multipliers": [1.0] * 4}),
        ("ssm_multipliers", {"ssm_multipliers": [1.0] * 4 + ["x"]}),
        ("mlp_multipliers", {"mlp_multipliers": 1.0}),
        ("key_multiplier", {"key_multiplier": 0}),
        ("mamba_d_head", {"mamba_d_head": 15}),
        ("time_step_limit", {"time_step_limit": [1.0]}),
    ],
)
def test_what_is_refused(tmp_path: Path, key: str, changes: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=key):
        read(tmp_path, NAME, **{**MAMBA, **changes})

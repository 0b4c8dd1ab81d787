"""Granite with experts: their number and size, and the multipliers."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import MoEConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "GraniteMoeForCausalLM"


def test_parts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, num_local_experts=6, attention_multiplier=0.5, residual_multiplier=0.25)
    assert config.experts == MoEConfig(6, 2, 96, True)
    assert (config.attention.scale, config.scalars.residual) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"num_local_experts": 1}, "'num_experts_per_tok' is 2, expected at most 1 experts"),
        ({"num_local_experts": 6, "num_experts": 7}, "'num_local_experts' is 6, expected the same as"),
        ({"logits_scaling": 0}, "'logits_scaling' is 0, expected a positive number"),
        ({"hidden_act": "relu"}, "'hidden_act' 'relu' is not supported"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)

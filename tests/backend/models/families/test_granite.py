"""Granite: its four multipliers."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "GraniteForCausalLM"


def test_multipliers(tmp_path: Path) -> None:
    multipliers = {"embedding_multiplier": 12, "residual_multiplier": 0.25, "logits_scaling": 8}
    config = read(tmp_path, NAME, attention_multiplier=0.5, **multipliers)
    scalars = config.scalars
    assert (scalars.embedding, scalars.residual, scalars.logits) == (12.0, 0.25, 0.125)
    assert config.attention.scale == 0.5


def test_a_divisor_of_zero(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'logits_scaling' is 0, expected a positive number"):
        read(tmp_path, NAME, logits_scaling=0)

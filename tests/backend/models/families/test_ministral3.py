"""Ministral 3: queries that grow by position."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import QueryGrowth
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Ministral3ForCausalLM"
ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(("beta", "expected"), [(0.1, QueryGrowth(0.1, 128)), (None, None)])
def test_growth(tmp_path: Path, beta: float | None, expected: QueryGrowth | None) -> None:
    rope = {**ROPE, "llama_4_scaling_beta": beta}
    assert read(tmp_path, NAME, rope_parameters=rope).attention.query_growth == expected


def test_a_wrong_factor(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="llama_4_scaling_beta"):
        read(tmp_path, NAME, rope_parameters={**ROPE, "llama_4_scaling_beta": "0.1"})

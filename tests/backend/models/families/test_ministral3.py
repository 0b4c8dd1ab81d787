"""Ministral 3: queries that grow by position."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from backend.config import QueryGrowth
from backend.errors import CheckpointError
from tests.backend.models.families.configs import SHAPE, read

NAME = "Ministral3ForCausalLM"
ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(("beta", "expected"), [(0.1, QueryGrowth(0.1, 128)), (None, None)])
def test_growth(tmp_path: Path, beta: float | None, expected: QueryGrowth | None) -> None:
    rope = {**ROPE, "llama_4_scaling_beta": beta}
    assert read(tmp_path, NAME, rope_parameters=rope).attention.query_growth == expected


def test_a_wrong_factor(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="llama_4_scaling_beta"):
        read(tmp_path, NAME, rope_parameters={**ROPE, "llama_4_scaling_beta": "0.1"})


@pytest.mark.parametrize(("inside", "outside", "expected"), [(64, None, 64), (None, 96, 96), (80, 80, 80)])
def test_the_original_length_in_both_places(
    tmp_path: Path, inside: int | None, outside: int | None, expected: int
) -> None:
    """Functions of transformers that scale find a length at the top level too."""
    rope = {**ROPE, "original_max_position_embeddings": inside, "llama_4_scaling_beta": 0.1}
    rope = {key: value for key, value in rope.items() if value is not None}
    top = {} if outside is None else {"original_max_position_embeddings": outside}
    attention = read(tmp_path, NAME, rope_parameters=rope, **top).attention
    theirs = AutoConfig.for_model("ministral3", **SHAPE, rope_parameters=rope, **top)
    ROPE_INIT_FUNCTIONS["yarn"](theirs, torch.device("cpu"))
    assert theirs.rope_parameters["original_max_position_embeddings"] == expected
    assert attention.rope is not None and attention.rope.original_max_tokens == expected
    assert attention.query_growth == QueryGrowth(0.1, expected)


def test_two_original_lengths(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'original_max_position_embeddings' is 96, expected 128 as"):
        read(tmp_path, NAME, rope_parameters=ROPE, original_max_position_embeddings=96)


@pytest.mark.parametrize("beta", [0.1, 0.25])
def test_both_spellings_are_equal(tmp_path: Path, beta: float) -> None:
    """The spelling of transformers 4 counts, and not what the family has by default under the other."""
    rope = {**ROPE, "llama_4_scaling_beta": beta}
    old, new = (read(tmp_path, NAME, **{key: rope}) for key in ("rope_scaling", "rope_parameters"))
    assert old == new and old.attention.query_growth == QueryGrowth(beta, 128)
    old = read(tmp_path, NAME, rope_scaling=ROPE)
    assert old == read(tmp_path, NAME, rope_parameters=ROPE) and old.attention.query_growth is None

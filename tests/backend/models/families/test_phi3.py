"""Phi-3: rotation of a part of each head, and LongRoPE."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.models.loaded import load_model
from tests.backend.models.checkpoints import LONGROPE, Variant, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.families.configs import read

NAME = "Phi3ForCausalLM"


@pytest.mark.parametrize("place", ["top", "rope"])
def test_rotated_part(tmp_path: Path, place: str) -> None:
    partial = {"partial_rotary_factor": 0.75}
    changes = partial if place == "top" else {"rope_parameters": {"rope_type": "default", **partial}}
    (rope,) = read(tmp_path, NAME, **changes).ropes
    assert rope.rotated == 0.75


@pytest.mark.parametrize("wrong", [0.1, 1.5, 0, "half"])
def test_a_wrong_part(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(CheckpointError, match="partial_rotary_factor"):
        read(tmp_path, NAME, partial_rotary_factor=wrong)


@pytest.mark.parametrize("name", ["yarn", "linear"])
def test_another_type_of_rotation(tmp_path: Path, name: str) -> None:
    """transformers reads yarn as LongRoPE in this family."""
    with pytest.raises(CheckpointError, match=f"'rope_type' '{name}' is not supported"):
        read(tmp_path, NAME, rope_scaling={"type": name, "factor": 2.0})


@pytest.mark.parametrize(("served", "length"), [(64, 60), (65, 90), (None, 90)])
def test_longrope_below_and_above_the_original_context(
    tmp_path: Path, served: int | None, length: int
) -> None:
    """Also across it in chunks: keys that were stored before are those of the long factors."""
    changes = {"rope_parameters": dict(LONGROPE), "original_max_position_embeddings": 64}
    theirs = write_checkpoint(Variant("phi", "phi3", changes), tmp_path)
    given = {"checkpoint": str(tmp_path), "device": "cpu", "dtype": "float32", "max_model_tokens": served}
    tokens = random_tokens(length, seed=1)
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    driver, track = Driver(load_model(EngineConfig(model="m", **given))), Track(tokens)
    ours = torch.cat([driver.step([(track, count)])[0] for count in (17, 30, length - 47)])
    assert (ours - expected).abs().max().item() <= 1e-4


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"short_factor": [1.0] * 7}, "'short_factor' is .*, expected 8 numbers, one for each rotated pair"),
        ({"long_factor": [1.0] * 9}, "'long_factor' is .*, expected 8 numbers, one for each rotated pair"),
        ({"long_factor": None}, "'long_factor' is None, expected a list of positive numbers"),
        ({"short_factor": [1.0, "2", *[1.0] * 6]}, r"'short_factor\[1\]' is '2', expected a number"),
        ({"long_factor": [1.0] * 7 + [0]}, r"'long_factor\[7\]' is 0, expected a positive number"),
    ],
)
def test_wrong_factors(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    rope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8, **changes}
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, rope_scaling=rope)


@pytest.mark.parametrize("original", [0, 1])
def test_an_original_context_without_a_logarithm(tmp_path: Path, original: int) -> None:
    rope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
    with pytest.raises(CheckpointError, match=f"'original_max_position_embeddings' is {original}, expected"):
        read(tmp_path, NAME, rope_scaling=rope, original_max_position_embeddings=original)

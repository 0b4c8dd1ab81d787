"""Mamba-2 in config.json: limits of time steps, as JSON can write infinity."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from backend.errors import CheckpointError
from backend.models.config_reader import ConfigReader
from backend.models.mamba_spec import read_limits


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, (0, math.inf)),
        ([0.0, {"__float__": "Infinity"}], (0, math.inf)),
        ([0.001, math.inf], (0.001, math.inf)),
        ([0, 0.5], (0, 0.5)),
        ([0, 10**400], (0, math.inf)),
    ],
)
def test_limits(written: object, expected: tuple[float, float]) -> None:
    assert read_limits(ConfigReader(Path("c.json"), {"time_step_limit": written})) == expected


@pytest.mark.parametrize(
    "written", [[0.5, 0.1], [-1, 1], [0.1], "inf", [0, "1"], [math.nan, 1], [10**400, math.inf]]
)
def test_wrong_limits(written: object) -> None:
    with pytest.raises(CheckpointError, match="c.json: 'time_step_limit'.*expected two numbers"):
        read_limits(ConfigReader(Path("c.json"), {"time_step_limit": written}))

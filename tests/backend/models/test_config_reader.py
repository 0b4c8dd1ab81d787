"""Typed values of config.json, and errors that name the file and the key."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from backend.errors import CheckpointError
from backend.models.config_reader import ConfigReader

READER = ConfigReader(Path("/m/config.json"), {"a": 3, "b": 2.5, "c": "4", "d": None, "e": True, "f": -1})


def test_values() -> None:
    assert READER.number("a") == 3.0 and READER.number("b") == 2.5 and READER.number("d", 7) == 7.0
    assert READER.positive("a") == 3 and READER.positive("missing", 8) == 8
    assert READER.optional_positive("a") == 3
    assert READER.optional_positive("d") is None and READER.optional_positive("missing") is None
    assert READER.flag("e") and not READER.flag("d") and not READER.flag("missing")


@pytest.mark.parametrize(
    ("key", "expected"),
    [("c", "'c' is '4', expected a number"), ("e", "a number"), ("d", "a number"), ("missing", "a number")],
)
def test_no_number(key: str, expected: str) -> None:
    with pytest.raises(CheckpointError, match=expected):
        READER.number(key)


@pytest.mark.parametrize("key", ["b", "f"])
def test_no_positive_whole_number(key: str) -> None:
    with pytest.raises(
        CheckpointError, match=f"/m/config.json: '{key}' is .*, expected a positive whole number"
    ):
        READER.positive(key)


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e39, math.nan, math.inf])
def test_numbers_that_float32_does_not_have(value: float) -> None:
    with pytest.raises(CheckpointError, match="/m/config.json: 'a' is .*, expected a number; repair"):
        ConfigReader(READER.path, {"a": value}).number("a")


@pytest.mark.parametrize("value", [0, -1e-5, 1e-39])
def test_no_positive_number(value: float) -> None:
    assert ConfigReader(READER.path, {"a": 1e-37}).positive_number("a") == 1e-37
    with pytest.raises(CheckpointError, match="'a' is .*, expected a positive number; repair"):
        ConfigReader(READER.path, {"a": value}).positive_number("a")


@pytest.mark.parametrize("value", [2**31, 10**30, 1e30])
def test_whole_numbers_have_a_bound(value: float) -> None:
    assert ConfigReader(READER.path, {"a": 2**31 - 1}).positive("a") == 2**31 - 1
    with pytest.raises(CheckpointError, match="'a' is .*, expected a positive whole number up to 2147483647"):
        ConfigReader(READER.path, {"a": value}).positive("a")


@pytest.mark.parametrize("value", [True, 1, "1", [[1]], [True], [1.0], [-1], {"1": 1}])
def test_indices(value: object) -> None:
    assert ConfigReader(READER.path, {"a": [2, 0]}).indices("a") == [2, 0]
    assert READER.indices("d") == READER.indices("missing") == []
    with pytest.raises(
        CheckpointError, match="'a' is .*, expected a list of whole numbers from 0 on; repair"
    ):
        ConfigReader(READER.path, {"a": value}).indices("a")

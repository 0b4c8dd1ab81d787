"""Typed values of config.json, and errors that name the file and the key."""

from __future__ import annotations

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

"""Typed access to a checkpoint's config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.errors import CheckpointError

_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The range of float32, in which the engine computes with most numbers; others become 0 or infinite."""
_LARGEST_WHOLE = 2**31 - 1


class ConfigReader:
    """config.json or one of its sections; a wrong value becomes a CheckpointError that names file and key."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        self.path = path
        self.raw = raw

    def error(self, key: str, value: object, expected: str) -> CheckpointError:
        """The error for `key`: what was found and what was expected, for the caller to raise."""
        return CheckpointError(f"{self.path}: {key!r} is {value!r}, expected {expected}; repair config.json")

    def unsupported(self, key: str, value: object, supported: str) -> CheckpointError:
        """The error for a valid value that this engine cannot run; changing it would change the output."""
        return CheckpointError(
            f"{self.path}: {key!r} {value!r} is not supported, only {supported}; choose another checkpoint"
        )

    def number(self, key: str, default: float | None = None) -> float:
        """The number under `key`, or `default` where the key is absent or null. Raises CheckpointError."""
        value = self.raw.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise self.error(key, value, "a number")
        return float(value)

    def positive_number(self, key: str, default: float | None = None) -> float:
        """The same for a number above 0."""
        value = self.number(key, default)
        if value < _SMALLEST:
            raise self.error(key, self.raw.get(key), "a positive number")
        return value

    def numbers(self, key: str, default: list[float]) -> list[float]:
        """A list of numbers, as long as `default`, which is the value where the key is absent or null."""
        found = default if self.raw.get(key) is None else self.raw[key]
        if not isinstance(found, list) or len(found) != len(default):
            raise self.error(key, found, f"a list of {len(default)} numbers")
        return [ConfigReader(self.path, {key: each}).number(key) for each in found]

    def optional_positive_number(self, key: str) -> float | None:
        """The same, or None where the key is absent or null."""
        return None if self.raw.get(key) is None else self.positive_number(key)

    def positive(self, key: str, default: int | None = None) -> int:
        """The same for a whole number above 0."""
        value = self.number(key, default)
        if not 1 <= value <= _LARGEST_WHOLE or value != int(value):
            raise self.error(key, self.raw.get(key), f"a positive whole number up to {_LARGEST_WHOLE}")
        return int(value)

    def indices(self, key: str) -> list[int]:
        """Whole numbers from 0 on; none where the key is absent or null. Raises CheckpointError."""
        found = [] if self.raw.get(key) is None else self.raw[key]
        if not isinstance(found, list) or any(type(each) is not int or each < 0 for each in found):
            raise self.error(key, found, "a list of whole numbers from 0 on")
        return found

    def count(self, key: str) -> int:
        """The whole number under `key`, 0 where it is absent or null. Raises CheckpointError."""
        return 0 if self.raw.get(key) in (None, 0) else self.positive(key)

    def optional_positive(self, key: str) -> int | None:
        """The same, or None where the key is absent or null."""
        return None if self.raw.get(key) is None else self.positive(key)

    def flag(self, key: str) -> bool:
        """Whether `key` is there and true. Raises CheckpointError unless it is true, false or null."""
        value = self.raw.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return bool(value)

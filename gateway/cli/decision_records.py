"""Reads the decision log for commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from gateway.settings import SettingsError
from router.log import Label, Record

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_log(path: Path) -> Iterator[Record | Label]:
    """All lines. Raises SettingsError with file and line."""
    record, label = msgspec.json.Decoder(Record).decode, msgspec.json.Decoder(Label).decode
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield label(line) if line.startswith(b'{"label_of"') else record(line)
                except msgspec.DecodeError as error:
                    raise SettingsError(f"{path}:{number}: not a recorded decision: {error}") from None
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None


def records_since(path: Path, since: str | None) -> list[Record]:
    """The decisions of the last `since`, as "90m", "1h" or "7d"; None: all."""
    records = [line for line in read_log(path) if isinstance(line, Record)]
    if since is None:
        return records
    found = re.fullmatch(r"(\d+)([smhd])", since)
    if found is None:
        raise SettingsError(f"--since {since!r} must be a number with s, m, h or d, such as 90m or 7d")
    start = datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
    return [each for each in records if datetime.fromisoformat(each.facts["time"]) >= start]

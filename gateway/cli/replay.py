"""`penstock replay`: what changed policies would have decided about recorded requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import msgspec

from gateway.settings import SettingsError
from policies.load import load_policies
from router.replay import Record, replay, report


def replay_log(folder: Path, log: Path, out: TextIO) -> int:
    """Print the differences. Raises PolicyError, or SettingsError for a log that cannot be read."""
    out.write(report(replay(_records(log), load_policies(folder))))
    return 0


def _records(path: Path) -> Iterator[Record]:
    decode = msgspec.json.Decoder(Record).decode
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decode(line)
                except msgspec.DecodeError as error:
                    raise SettingsError(f"{path}:{number}: not a recorded decision: {error}") from None
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None

"""The start-up progress of each process, in a small file that the supervisor writes and workers read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One engine or encoder process, as of its last progress line or exit."""

    phase: str  # "starting", "loading", "warming_up", "ready", "restarting"
    fraction: float = 0.0  # of the phase, 0 to 1
    restarts: int = 0


def write_status(path: Path, statuses: Mapping[str, ProcessStatus]) -> None:
    """Replace the file atomically: a reader sees the old or the new one."""
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(dict(statuses)))
    os.replace(new, path)


def read_status(path: str) -> Mapping[str, ProcessStatus]:
    """The status by model name; empty when there is no such file."""
    if not path:
        return {}
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, ProcessStatus])
    except FileNotFoundError:
        return {}

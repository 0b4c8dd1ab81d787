"""What is wrong with the folder of what survives a restart, for /health/ready."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MIN_FREE_BYTES = 64 << 20
"""SQLite needs some for its journal; below, writes are about to fail."""
_MAGIC = b"SQLite format 3\x00"


def data_folder_faults(folder: str) -> Mapping[str, str]:
    """By name of a store, or "folder": what fails and the remedy. Costs a few file reads."""
    path = Path(folder)
    if not folder:
        return {}
    found: dict[str, str] = {}
    try:
        if not path.exists():  # it is made on first use
            return {}
        usage = os.statvfs(path)
        free_bytes = usage.f_bavail * usage.f_frsize
        if free_bytes < MIN_FREE_BYTES:
            found["folder"] = f"full: {free_bytes >> 20} MiB are left on its file system; make room"
        elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            found["folder"] = "not writable by the user of the gateway"
        for file in sorted(path.glob("*.sqlite")):
            if fault := _database_fault(file):
                found[file.stem] = fault
    except OSError as error:
        found["folder"] = f"cannot be read: {error.strerror}"
    return found


def _database_fault(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            head = opened.read(len(_MAGIC))
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    if head and head != _MAGIC:  # an empty one is new
        return f"{file.name} is corrupt; restore it, or move it away and restart"
    return "" if os.access(file, os.W_OK) else f"{file.name} is not writable by the user of the gateway"

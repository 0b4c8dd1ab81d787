"""Notices changes of policy files by polling: it works on every file system, and with mounted ConfigMaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

POLL_S = 1.0

Stamp = tuple[tuple[str, int, int], ...]


def stamp(folder: Path) -> Stamp:
    """Name, time of modification and size of each policy file; symbolic links are followed."""
    files = [folder] if folder.is_file() else [p for p in folder.glob("*") if p.suffix in {".yaml", ".yml"}]
    found = []
    for path in sorted(files):
        try:
            status = path.stat()
        except OSError:  # removed in this moment
            continue
        found.append((path.name, status.st_mtime_ns, status.st_size))
    return tuple(found)


async def watch(folder: Path, on_change: Callable[[], None], poll_s: float = POLL_S) -> NoReturn:
    """Call `on_change` after each change, once the files have stayed the same for one poll."""
    served = latest = stamp(folder)
    while True:
        await asyncio.sleep(poll_s)
        before, latest = latest, stamp(folder)
        if latest == before and latest != served:
            served = latest
            on_change()

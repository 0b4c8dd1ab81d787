"""Notices changes of policy files by polling: it works on every file system, and with mounted ConfigMaps."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from policies.errors import Place, PolicyError, Problem

POLL_S = 1.0
REST_S = 0.3
"""A file that changed within that time may not be complete."""
LONG_REST_S = 1.5
"""The same for a file that does not end with a line end."""
MAX_REST_S = 10.0


class FileStamp(NamedTuple):
    """What changes when a policy file does, even if another one of the same size and time replaces it."""

    name: str
    mtime_ns: int
    size: int
    inode: int
    ctime_ns: int


Stamp = tuple[FileStamp, ...]
T = TypeVar("T")


def stamp(folder: Path) -> Stamp:
    """The stamp of each policy file; symbolic links are followed."""
    files = [folder] if folder.is_file() else [p for p in folder.glob("*") if p.suffix in {".yaml", ".yml"}]
    found = []
    for path in sorted(files):
        try:
            status = path.stat()
        except OSError:  # removed in this moment
            continue
        found.append(
            FileStamp(path.name, status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)
        )
    return tuple(found)


def read_at_rest(folder: Path, read: Callable[[], T], max_s: float = MAX_REST_S) -> T:
    """What `read` returns or raises when no file changed for a moment before, nor meanwhile.

    Raises PolicyError when the files do not come to rest within `max_s`. It blocks: call it in a thread.
    """
    give_up_s = time.monotonic() + max_s
    while time.monotonic() < give_up_s:
        before = _at_rest(folder, give_up_s)
        error: PolicyError | None = None
        try:
            found = read()
        except PolicyError as raised:
            error = raised
        if stamp(folder) == before:
            if error is not None:
                raise error
            return found
    message = f"changes all the time, for {max_s:g} s now; put complete files there with a rename"
    raise PolicyError([Problem(Place(str(folder)), message)])


def _at_rest(folder: Path, give_up_s: float) -> Stamp:
    """The stamp, after a rest if a file has just changed: observed, as the file system's clock may differ."""
    latest = stamp(folder)
    while time.monotonic() < give_up_s:
        now_ns = time.time_ns()
        rests_s = [
            rest_s for each in latest if now_ns - each.ctime_ns < (rest_s := _rest_s(folder, each)) * 1e9
        ]
        if not rests_s:
            return latest
        time.sleep(max(rests_s))
        before, latest = latest, stamp(folder)
        if latest == before:
            return latest
    return latest


def without_wait(path: str, flags: int) -> int:
    """An opener of files: a named pipe would wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _rest_s(folder: Path, file: FileStamp) -> float:
    """Longer for a file that ends inside a line: a writer may be at work on it."""
    try:
        path = folder if folder.is_file() else folder / file.name
        with open(path, "rb", opener=without_wait) as opened:
            opened.seek(max(0, file.size - 1))
            return REST_S if opened.read(1) == b"\n" else LONG_REST_S
    except OSError:
        return REST_S


class PolicyWatch:
    """Notices files that differ from those that were read last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = stamp(folder)

    def reading(self, read: Callable[[], T]) -> Callable[[], T]:
        """`read`, after which the files as they are now are no change, whatever is served then."""

        def noted() -> T:
            self._read = stamp(self._folder)
            return read()

        return noted

    async def run(self, on_change: Callable[[], None], poll_s: float = POLL_S) -> NoReturn:
        """Call `on_change`, until they are read, once changed files have stayed the same for one poll."""
        latest = self._read
        while True:
            await asyncio.sleep(poll_s)
            before, latest = latest, stamp(self._folder)
            if latest == before and latest != self._read:
                on_change()

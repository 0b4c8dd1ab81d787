"""Puts the contents of the keys file in force whenever they change, in a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from gateway.keys_file import KeySet, KeysFileError, LiveKeys, read_keys

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""A change is in force two polls later: a file that was not the same for one may be half-written."""
MAX_UNREST_S = 0.6
"""A file that is replaced all the time is read after that."""

RETRY_S = 1.0
"""A file that could not be read is tried again, even if it does not change."""

_Stamp = tuple[int, ...]


class KeysWatch:
    """The keys of the file. A file that cannot be used leaves those before it in force."""

    def __init__(
        self, path: str, on_fault: Callable[[], None], *, last_good: str = "", is_logging: bool = True
    ) -> None:
        """Reads the file, and goes on until `close`. Raises KeysFileError for one that was never good.

        `last_good`: what it held before, for a worker that starts while it is broken. `is_logging`: one
        process tells what all of them see.
        """
        self._path, self._on_fault, self._is_logging = path, on_fault, is_logging
        self._served = self._latest = _stamp(path)
        self._moving_since_s = self._retry_at_s = 0.0
        self.fault = ""  # why the file as it is now is not in force
        self.live = LiveKeys(self._first(last_good))
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="watches the keys file").start()

    def close(self) -> None:
        """End the thread soon."""
        self._ended.set()

    def poll(self, now_s: float) -> None:
        """Look at the file once, and read it when it has changed and is at rest."""
        before, self._latest = self._latest, _stamp(self._path)
        if self._latest == self._served:
            if self.fault and now_s >= self._retry_at_s:  # it may have been for lack of a file descriptor
                self._retry_at_s = now_s + RETRY_S
                self._read(is_new=False)
        elif self._latest == before:
            self._served, self._retry_at_s = self._latest, now_s + RETRY_S
            self._read()
        elif before == self._served:
            self._moving_since_s = now_s
        elif self._latest[:2] != before[:2] and now_s - self._moving_since_s >= MAX_UNREST_S:
            self._moving_since_s = now_s  # another file each time: they arrive complete, by renames
            self._read(is_at_rest=False)

    def _first(self, last_good: str) -> KeySet:
        try:
            return read_keys(self._path)
        except KeysFileError as error:
            if not last_good:
                raise
            self._failed(str(error))
            return KeySet.of(last_good.encode())

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            try:
                self.poll(time.monotonic())
            except Exception:
                logger.exception("the keys file could not be watched")

    def _read(self, *, is_at_rest: bool = True, is_new: bool = True) -> None:
        try:
            found = read_keys(self._path)
        except KeysFileError as error:
            if is_at_rest and (is_new or str(error) != self.fault):
                self._failed(str(error))
            return
        self.fault = ""
        self.live.use(found)
        if self._is_logging:
            logger.info("%d keys of %r are in force", len(found.by_digest), self._path)

    def _failed(self, fault: str) -> None:
        self._on_fault()
        if self._is_logging and fault != self.fault:
            logger.error("the keys before stay in force: %s", fault)
        self.fault = fault


def _stamp(path: str) -> _Stamp:
    """What changes when the file does; links are followed. () while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size

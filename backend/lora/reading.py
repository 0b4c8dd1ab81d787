"""Reads files one at a time beside the engine's thread, and leaves behind a read that does not return.

A dead network mount lets a read wait for ever, and no thread can be ended from outside. So each read has a
daemon thread, which the process does not wait for when it ends, and a limit: then others have their turn.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Generic, TypeVar

from backend.errors import AdapterError

READ_LIMIT_S = 90.0
"""Gigabytes from a slow network disk come within it, and whoever loads them still waits for the answer."""

_LAST_READ_S = 1.0
_LOOK_S = 0.1

T = TypeVar("T")


def read_regular_file(path: Path, num_bytes: int) -> bytes:
    """Up to so many bytes. Raises OSError; AdapterError for a pipe or the like, which may never have any."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe waits for its writer else
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise AdapterError(f"{path} is no regular file; put a copy of the adapter's file there")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(num_bytes)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Read(Generic[T]):
    function: Callable[[], T]
    what: str
    future: Future[T] = field(default_factory=Future)

    def run(self) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = self.function()
        except BaseException as raised:  # noqa: BLE001 - it is the caller's to judge
            error = raised
        with suppress(InvalidStateError):  # given up, or no longer wanted: nobody looks
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)  # type: ignore[arg-type]


class Reader(Generic[T]):
    """Calls functions in turn. Its methods are for one thread, which calls `advance` often."""

    def __init__(self, limit_s: float = READ_LIMIT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._waiting: deque[_Read[T]] = deque()
        self._current: _Read[T] | None = None
        self._thread: Thread | None = None
        self._deadline_s = 0.0

    def submit(self, function: Callable[[], T], what: str) -> Future[T]:
        """Call the function when those before it have ended; `what` it reads is for the message."""
        read = _Read(function, what)
        self._waiting.append(read)
        self.advance()
        return read.future

    def call(self, function: Callable[[], T], what: str) -> T:
        """The same, waited for."""
        future = self.submit(function, what)
        while not future.done():
            wait([future], _LOOK_S)
            self.advance()
        return future.result()

    def advance(self) -> None:
        """Begin the next read when the last one has ended or has had its time."""
        if self._current is not None and not self._current.future.done():
            if self._clock() < self._deadline_s:
                return
            self._give_up(self._current)
        self._current = self._thread = None
        if self._waiting:
            self._current = self._waiting.popleft()
            self._deadline_s = self._clock() + self._limit_s
            self._thread = Thread(target=self._current.run, name="adapters", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Begin nothing more; wait a moment for what is read now, lest the interpreter end under torch."""
        while self._waiting:
            self._waiting.popleft().future.cancel()
        if self._thread is not None:
            self._thread.join(_LAST_READ_S)

    def _give_up(self, read: _Read[T]) -> None:
        error = AdapterError(
            f"{read.what} was not read within {self._limit_s:g} s; see if its disk answers, and try again"
        )
        with suppress(InvalidStateError):  # it has come after all
            read.future.set_exception(error)

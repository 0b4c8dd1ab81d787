"""Reads files beside the engine's thread, one at a time, and abandons a read that takes too long.

A dead network mount can block a read forever, and Python cannot stop a thread. So each read has a daemon
thread of its own, which does not delay the end of the process, and a time limit, after which the next starts.
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
"""Long enough for gigabytes from a slow network disk, short enough for a client that waits for the answer."""

_JOIN_LIMIT_S = 1.0
_POLL_S = 0.1

T = TypeVar("T")


def read_regular_file(path: Path, num_bytes: int) -> bytes:
    """The first `num_bytes` of a file. Raises OSError; AdapterError for a pipe or device, which may block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # else opening a pipe blocks
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
        except BaseException as raised:  # noqa: BLE001 - re-raised by future.result()
            error = raised
        with suppress(InvalidStateError):  # timed out or cancelled: the result is not used
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)  # type: ignore[arg-type]


class BoundedReader(Generic[T]):
    """Runs functions in order, each within a time limit.

    All methods must be called from one thread, which calls `advance` often while a future is pending.
    """

    def __init__(self, limit_s: float = READ_LIMIT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._waiting: deque[_Read[T]] = deque()
        self._current: _Read[T] | None = None
        self._thread: Thread | None = None
        self._deadline_s = 0.0

    def submit(self, function: Callable[[], T], what: str) -> Future[T]:
        """Call `function` after those submitted before; `what` names its files in the timeout's message.

        The future raises what the function raises, or AdapterError after the time limit.
        """
        read = _Read(function, what)
        self._waiting.append(read)
        self.advance()
        return read.future

    def call(self, function: Callable[[], T], what: str) -> T:
        """`submit`, and wait for the result."""
        future = self.submit(function, what)
        while not future.done():
            wait([future], _POLL_S)
            self.advance()
        return future.result()

    def advance(self) -> None:
        """Start the next read if the current one has ended or exceeded its limit."""
        if self._current is not None and not self._current.future.done():
            if self._clock() < self._deadline_s:
                return
            self._time_out(self._current)
        self._current = self._thread = None
        if self._waiting:
            self._current = self._waiting.popleft()
            self._deadline_s = self._clock() + self._limit_s
            self._thread = Thread(target=self._current.run, name="adapters", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Cancel what waits, and wait a second for the current read: torch must not run in it at exit."""
        while self._waiting:
            self._waiting.popleft().future.cancel()
        if self._thread is not None:
            self._thread.join(_JOIN_LIMIT_S)

    def _time_out(self, read: _Read[T]) -> None:
        error = AdapterError(
            f"{read.what} was not read within {self._limit_s:g} s; see if its disk answers, and try again"
        )
        with suppress(InvalidStateError):  # it ended just now
            read.future.set_exception(error)

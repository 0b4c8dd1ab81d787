"""A worker's end of the pipes to its supervisor.

On stdin comes the configuration, one JSON line, and then the messages of `messages.py`. On stdout go progress
lines, which are the worker's heartbeats.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import msgspec

from gateway.processes.managed_process import Progress
from gateway.processes.messages import StatusReport, ToWorker, decode
from gateway.processes.status import ProcessStatus

_READ_BYTES = 1 << 16


class SupervisorPipes:
    """Reads lines of the supervisor and writes progress to it. Never waits after `read_line`."""

    def __init__(self, stdin_fd: int = 0, stdout_fd: int = 1) -> None:
        self.stdin_fd = stdin_fd
        self.statuses: dict[str, ProcessStatus] = {}  # by model name, kept up to date by `receive`
        self.on_message: Callable[[ToWorker], None] = lambda message: None  # gets all others
        self._stdout_fd = stdout_fd
        self._buffer = b""
        os.set_blocking(stdout_fd, False)  # a supervisor that does not read must not stop us

    def read_line(self) -> bytes:
        """The next line, "" at the end. For the configuration; later lines go to `receive`."""
        while b"\n" not in self._buffer and self._read():
            pass
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def receive(self) -> bool:
        """Take what has arrived on stdin, once it is readable; False at its end: the supervisor is gone."""
        is_open = self._read()
        self.dispatch()
        return is_open

    def dispatch(self) -> None:
        """Take what has been read already: after `read_line`, more may have come with that line."""
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            message = decode(line)
            if isinstance(message, StatusReport):
                self.statuses.update(message.statuses)
            else:
                self.on_message(message)

    def report(self, progress: Progress) -> None:
        """Send a progress line; without room for it in the pipe the supervisor misses one heartbeat."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._stdout_fd, msgspec.json.encode(progress) + b"\n")

    def _read(self) -> bool:
        data = os.read(self.stdin_fd, _READ_BYTES)
        self._buffer += data
        return bool(data)

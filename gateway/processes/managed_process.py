"""One child process: restarted with exponential backoff, reports progress on stdout, dies with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from backend.parent_death_signal import die_with

logger = logging.getLogger(__name__)

EXIT_CANNOT_SERVE = 2
"""Exit code of a process whose configuration or checkpoint cannot work; its stderr has the reason."""
FIRST_BACKOFF_S = 0.2
LAST_BACKOFF_S = 5.0
STABLE_AFTER_S = 30.0
"""After running this long a process restarts with the first backoff again."""

_MAX_UNREAD_BYTES = 1 << 20


class CannotServe(Exception):
    """A process refused its configuration; its stderr has the reason."""


class Progress(msgspec.Struct, frozen=True):
    """One JSON line of a process's stdout."""

    phase: str
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a process: `python -m module arguments`."""

    name: str  # for the log, such as "engine 'pico-small'"
    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    stdin: Callable[[], bytes] = bytes  # written at each start; the pipe stays open as long as we live
    pass_fds: Sequence[int] = ()


@dataclass(eq=False)
class ManagedProcess:
    """Keeps one child process running. The other methods may be called while `run` runs."""

    command: Command
    on_progress: Callable[[Progress], None]
    phase: str = ""
    restarts: int = 0
    subprocess: asyncio.subprocess.Process | None = None  # the current one
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Start the process, and restart it whenever it exits, until `stop`. Raises CannotServe."""
        loop = asyncio.get_running_loop()
        backoff_s = FIRST_BACKOFF_S
        while not self._stop.is_set():
            started_s = loop.time()
            code = await self._run_once()
            if self._stop.is_set():
                return
            if code == EXIT_CANNOT_SERVE and self.restarts == 0:
                raise CannotServe(self.command.name)
            if loop.time() - started_s > STABLE_AFTER_S:
                backoff_s = FIRST_BACKOFF_S
            self.restarts += 1
            logger.warning(
                "%s exited (%s), restarting in %.1f s", self.command.name, _describe_exit(code), backoff_s
            )
            self._report(Progress("restarting"))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), backoff_s)
            backoff_s = min(backoff_s * 2, LAST_BACKOFF_S)

    async def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, wait, and send SIGKILL if the process is still running after `timeout_s`."""
        self._stop.set()
        process = self.subprocess
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            logger.warning("%s did not exit within %g s: killing it", self.command.name, timeout_s)
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """Send SIGKILL; `run` restarts the process unless `stop` was called."""
        if self.subprocess is not None and self.subprocess.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.subprocess.kill()

    def send(self, line: bytes) -> None:
        """Write a line to the process's stdin, unless it is not running or has long read nothing."""
        stdin = self.subprocess.stdin if self.subprocess is not None else None
        if stdin is None or stdin.is_closing() or stdin.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            return
        stdin.write(line)

    def _report(self, progress: Progress) -> None:
        self.phase = progress.phase
        self.on_progress(progress)

    async def _run_once(self) -> int:
        command = self.command
        self._report(Progress("starting"))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the current folder may have folders named like our packages
            "-m",
            command.module,
            *command.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(command.environment),
            pass_fds=tuple(command.pass_fds),
            start_new_session=True,  # Ctrl-C in the terminal reaches only the supervisor, which drains
            preexec_fn=die_with(os.getpid()),
        )
        self.subprocess = process
        if self._stop.is_set():
            self.kill()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(command.stdin())
            await process.stdin.drain()
        await self._read_progress(process.stdout)
        code = await process.wait()
        process.stdin.close()
        return code

    async def _read_progress(self, stdout: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stdout.readline()
            except ValueError:  # longer than the reader's limit: not a progress line
                continue
            if not line:
                return
            try:
                progress = msgspec.json.decode(line, type=Progress)
            except msgspec.DecodeError:
                continue  # output of a library
            self._report(progress)


def _describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

"""One child process: restarted with exponential backoff, reports progress on stdout, dies with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from backend.parent_death_signal import die_with
from gateway.processes.restarts import REPEATED, Restarts

logger = logging.getLogger(__name__)

EXIT_CANNOT_SERVE = 2
"""Exit code of a process whose configuration or checkpoint cannot work; its stderr has the reason."""

SERVING_PHASES = ("serving", "ready")
"""A gateway worker is "serving" until all models are ready for the first time."""
_MAX_UNREAD_BYTES = 1 << 20


class CannotServe(Exception):
    """A process refused its configuration: its name, and the reason as it told it."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        super().__init__(f"{name} cannot serve: {reason or 'see its error in the log'}")


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """One JSON line of a process's stdout."""

    phase: str
    fraction: float = 0.0
    error: str = ""  # one sentence without prompt text: why the process is about to exit
    # Of gateway workers, whose versions of the policies have serial numbers; see messages.py.
    prepared: int = 0  # the latest that was built, or is current
    prepare_error: str = ""  # why the one that was asked for could not be built
    oldest: int = 0  # the lowest with requests
    wanted: tuple[str, ...] = ()  # models whose engines requests wait for
    ask: str = ""  # "reload" or "rollback"
    ask_id: int = 0


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
    num_restarts: int = 0
    restarts: Restarts = field(default_factory=Restarts)
    subprocess: asyncio.subprocess.Process | None = None  # the current one
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _error: str = ""  # why the current one exits, or was killed
    _progress_s: float = 0.0  # time of the last progress line
    _ready_s: float | None = None  # time of the current one's first "ready"

    async def run(self) -> None:
        """Start the process, and restart it whenever it exits, until `stop`. Raises CannotServe."""
        while not self._stop.is_set():
            self._error, self._ready_s = "", None
            try:
                code = await self._run_once()
            except OSError as error:  # such as too many processes
                code, self._error = 1, f"cannot start: {error}"
            if self._stop.is_set():
                return
            if code == EXIT_CANNOT_SERVE and self.num_restarts == 0:
                raise CannotServe(self.command.name, self._error)
            self.num_restarts += 1
            wait_s = self._failed(code)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait_s)

    @property
    def is_stopping(self) -> bool:
        """True once `stop` was called."""
        return self._stop.is_set()

    @property
    def ready(self) -> bool:
        """True when the process sends progress lines as heartbeats."""
        return self.phase in SERVING_PHASES

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the last progress line."""
        return time.monotonic() - self._progress_s

    def begin_stop(self) -> None:
        """The process is about to exit by itself: do not start it again."""
        self._stop.set()

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

    def kill(self, reason: str = "") -> None:
        """Send SIGKILL; `run` restarts the process unless `stop` was called."""
        self._error = reason
        if self.subprocess is not None and self.subprocess.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.subprocess.kill()

    def send(self, line: bytes) -> None:
        """Write a line to the process's stdin, unless it is not running or has long read nothing."""
        stdin = self.subprocess.stdin if self.subprocess is not None else None
        if stdin is None or stdin.is_closing() or stdin.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            return
        stdin.write(line)

    def _failed(self, code: int) -> float:
        """Note and log a failure; returns the seconds until the next start."""
        ready_s = None if self._ready_s is None else time.monotonic() - self._ready_s
        cause = f"{_describe_exit(code)}: {self._error}" if self._error else _describe_exit(code)
        wait_s = self.restarts.failed(cause, ready_s)
        repeated = self.restarts.repeated
        name = self.command.name
        if repeated is None:
            logger.warning("%s exited (%s), restarting in %.1f s", name, cause, wait_s)
        elif repeated.count == REPEATED:
            logger.error(
                "%s has failed %d times in a row (%s): restarting in %.1f s and with backoff from now on, "
                "without a line for each; /health/ready shows the latest",
                *(name, repeated.count, cause, wait_s),
            )
        self._report(Progress("restarting"))
        return wait_s

    def _report(self, progress: Progress) -> None:
        self.phase = progress.phase
        self._progress_s = time.monotonic()
        self._error = progress.error or self._error
        if progress.phase == "ready" and self._ready_s is None:
            self._ready_s = self._progress_s
            if self.restarts.repeated is not None:
                logger.info("%s is ready after %d failures", self.command.name, self.restarts.repeated.count)
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
        stdin, stdout = _pipes(process)
        with contextlib.suppress(ConnectionError):
            stdin.write(command.stdin())
            await stdin.drain()
        await self._read_progress(stdout)
        code = await process.wait()
        stdin.close()
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


def _pipes(process: asyncio.subprocess.Process) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
    """The pipes to its stdin and from its stdout."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError(f"process {process.pid} was started without pipes")
    return process.stdin, process.stdout


def _describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

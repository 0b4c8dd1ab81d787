"""One process of ours: dies with us, reports progress as JSON lines on stdout, starts again when it ends."""

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
"""A process ends with this when its configuration or checkpoint can never work; its stderr says why."""
FIRST_BACKOFF_S = 0.2
LAST_BACKOFF_S = 5.0
STABLE_AFTER_S = 30.0
"""A process that ran this long begins again with the first back-off."""


class CannotServe(Exception):
    """A process refused its configuration; it has said why on stderr."""


class Progress(msgspec.Struct, frozen=True):
    """One line of a process's stdout."""

    phase: str
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a process: `python -m module arguments`."""

    name: str  # for the log, such as "engine pico-small"
    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    stdin: bytes = b""  # written at once; the pipe then stays open as long as we live
    pass_fds: Sequence[int] = ()


@dataclass(eq=False)
class Child:
    """Keeps one process running. `run` does the work; the rest may be called while it runs."""

    command: Command
    on_progress: Callable[[Progress], None]
    phase: str = ""
    restarts: int = 0
    process: asyncio.subprocess.Process | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Start the process, again whenever it ends, until `stop`. Raises CannotServe."""
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
                "%s ended (%s); starts again in %.1f s", self.command.name, _ending(code), backoff_s
            )
            self._report(Progress("restarting"))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), backoff_s)
            backoff_s = min(backoff_s * 2, LAST_BACKOFF_S)

    async def stop(self, timeout_s: float) -> None:
        """Ask the process to end (SIGTERM), wait, and kill it when it has not ended in time."""
        self._stop.set()
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            logger.warning("%s did not end within %g s and is killed", self.command.name, timeout_s)
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """End the process at once; `run` starts it again unless `stop` was called."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    def _report(self, progress: Progress) -> None:
        self.phase = progress.phase
        self.on_progress(progress)

    async def _run_once(self) -> int:
        command = self.command
        self._report(Progress("starting"))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the current folder may hold folders of our packages' names
            "-m",
            command.module,
            *command.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(command.environment),
            pass_fds=tuple(command.pass_fds),
            start_new_session=True,  # Ctrl-C in the terminal reaches us, and we drain
            preexec_fn=die_with(os.getpid()),
        )
        self.process = process
        if self._stop.is_set():
            self.kill()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(command.stdin)
            await process.stdin.drain()
        await self._read_progress(process.stdout)
        code = await process.wait()
        process.stdin.close()
        return code

    async def _read_progress(self, stdout: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stdout.readline()
            except ValueError:  # longer than the reader's limit: not ours
                continue
            if not line:
                return
            try:
                progress = msgspec.json.decode(line, type=Progress)
            except msgspec.DecodeError:
                continue  # a library's chatter
            self._report(progress)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

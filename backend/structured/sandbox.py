"""Compiles untrusted grammars in a subprocess under time and memory limits, before the engine does."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from backend.structured.sandbox_process import ACCEPTED, HEAD_BYTES, SIZE_BYTES

_START_LIMIT_S = 60.0
_STALL_LIMIT_S = 60.0
"""Wall time of one compilation, most of it without a CPU: the machine's fault, not the grammar's."""

_DEATH_S = 5.0
"""A process whose pipes are closed has ended by then."""

_FOREIGN_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Sent by an operator, or by a kernel that is out of memory; not by a limit of the sandbox."""

_MODULE = "backend.structured.sandbox_process"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits on compiling one grammar."""

    time_s: float = 3.0  # of CPU: a busy machine is no fault of the grammar
    max_bytes: int = 1 << 30  # while compiling
    max_compiled_bytes: int = 64 << 20  # afterwards; schemas of 160 KB with 9,000 enum values take 23 MB


class SandboxEnded(Exception):
    """The process met a limit because of the grammar."""


class SandboxLost(Exception):
    """The process could not be started, was killed from outside, or stalled: not because of the grammar."""


class Sandbox:
    """One subprocess, started on first use and restarted after it dies. Only `interrupt` is thread-safe."""

    def __init__(
        self, checkpoint: Path, size: int, eos_token_ids: Iterable[int], limits: SandboxLimits
    ) -> None:
        self._limits = limits
        self._argument = json.dumps(
            {
                "checkpoint": str(checkpoint),
                "size": size,
                "eos_token_ids": sorted(eos_token_ids),
                "max_bytes": limits.max_bytes,
                "cpu_s": limits.time_s,
            }
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._interrupted = Event()

    def check(self, source: str) -> tuple[str, int]:
        """Return llguidance source that is known to compile, relaxed if necessary, and its compiled size.

        Raises ValueError with the reason if it does not compile or is too large, SandboxEnded if the process
        met a limit, SandboxLost if two processes in turn were lost.
        """
        try:
            reply = self._ask(source)
        except SandboxLost:
            reply = self._ask(source)
        if reply[:1] != ACCEPTED:
            raise ValueError(" ".join(reply[1:].decode("utf-8", "replace").split()))
        start = 1 + SIZE_BYTES
        num_bytes = int.from_bytes(reply[1:start])
        if num_bytes > self._limits.max_compiled_bytes:
            raise ValueError(
                f"compiled it takes {num_bytes} bytes of memory (limit {self._limits.max_compiled_bytes})"
            )
        return reply[start:].decode("utf-8", "replace"), num_bytes

    def _ask(self, source: str) -> bytes:
        """The process's reply. Raises SandboxEnded or SandboxLost."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died while it was idle
        try:
            process = self._process or self._start()
            data = source.encode()
            assert process.stdin is not None
            try:
                process.stdin.write(len(data).to_bytes(HEAD_BYTES) + data)
                process.stdin.flush()
            except OSError:
                raise self._cause(process) from None
            return self._reply(process, _STALL_LIMIT_S)
        except (SandboxEnded, SandboxLost):
            self.close()
            raise

    def interrupt(self) -> None:
        """Kill the process for good, from any thread; a `check` in progress raises SandboxLost."""
        self._interrupted.set()
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):  # flushing unread input to a dead process fails
            process.stdin.close()
        process.stdout.close()
        process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._interrupted.is_set():
            raise SandboxLost("the engine is shutting down")
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, self._argument],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise SandboxLost(f"no process could be started ({error.strerror})") from None
        if self._interrupted.is_set():  # while Popen ran
            process.kill()
        try:
            self._reply(process, _START_LIMIT_S)
        except SandboxEnded:  # whatever ended it, it had no grammar yet
            raise SandboxLost("its process ended while it started") from None
        return process

    def _cause(self, process: subprocess.Popen[bytes]) -> SandboxEnded | SandboxLost:
        """Why a process has closed its pipes."""
        try:
            code = process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            return SandboxLost("its process does not end")
        if -code in _FOREIGN_SIGNALS:
            return SandboxLost(f"its process was killed by signal {-code}")
        if -code == signal.SIGPROF:
            return SandboxEnded(f"it takes longer than {self._limits.time_s:g} s of CPU time to compile")
        return SandboxEnded(f"it needs too much memory to compile (limit {self._limits.max_bytes} bytes)")

    def _reply(self, process: subprocess.Popen[bytes], limit_s: float) -> bytes:
        """Read one frame. Raises SandboxEnded or SandboxLost."""
        until_s = time.monotonic() + limit_s
        head = self._read(process, HEAD_BYTES, until_s)
        return self._read(process, int.from_bytes(head), until_s)

    def _read(self, process: subprocess.Popen[bytes], size: int, until_s: float) -> bytes:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise SandboxLost("its process made no progress; the machine is busy")
                part = os.read(descriptor, size - len(data))
                if not part:
                    raise self._cause(process)
                data += part
        return data

"""Compiles untrusted grammars in a subprocess under time and memory limits, before the engine does."""

from __future__ import annotations

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
_MODULE = "backend.structured.sandbox_process"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits on compiling one grammar."""

    time_s: float = 3.0
    max_bytes: int = 1 << 30  # while compiling
    max_compiled_bytes: int = 64 << 20  # afterwards; schemas of 160 KB with 9,000 enum values take 23 MB


class SandboxEnded(Exception):
    """The process died or was killed at a limit."""


class _Killed(SandboxEnded):
    """The process was killed from outside, or was gone before it got the grammar, which is not to blame."""


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
                "limit_s": 2 * limits.time_s,
            }
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._interrupted = Event()

    def check(self, source: str) -> tuple[str, int]:
        """Return llguidance source that is known to compile, relaxed if necessary, and its compiled size.

        Raises ValueError with the reason if it does not compile or is too large, SandboxEnded if the process
        met a limit. One that was killed by others is tried again: twice, and it was the kernel, for memory.
        """
        try:
            return self._check(source)
        except _Killed:
            if self._interrupted.is_set():
                raise
            return self._check(source)

    def _check(self, source: str) -> tuple[str, int]:
        try:
            process = self._process or self._start()
            data = source.encode()
            assert process.stdin is not None
            try:
                process.stdin.write(len(data).to_bytes(HEAD_BYTES) + data)
                process.stdin.flush()
            except OSError:
                raise _Killed("it cannot be compiled") from None
            reply = self._reply(process, self._limits.time_s)
        except SandboxEnded:
            self.close()
            raise
        if reply[:1] != ACCEPTED:
            raise ValueError(" ".join(reply[1:].decode("utf-8", "replace").split()))
        start = 1 + SIZE_BYTES
        num_bytes = int.from_bytes(reply[1:start])
        if num_bytes > self._limits.max_compiled_bytes:
            raise ValueError(
                f"compiled it takes {num_bytes} bytes of memory (limit {self._limits.max_compiled_bytes})"
            )
        return reply[start:].decode("utf-8", "replace"), num_bytes

    def interrupt(self) -> None:
        """Kill the process for good, from any thread; a `check` in progress raises SandboxEnded."""
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
        try:
            process.stdin.close()
        except OSError:  # flushing unread input to a dead process fails
            pass
        process.stdout.close()
        process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._interrupted.is_set():
            raise SandboxEnded("the engine is shutting down")
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, self._argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self._interrupted.is_set():  # while Popen ran
            process.kill()
        self._reply(process, _START_LIMIT_S)
        return process

    def _reply(self, process: subprocess.Popen[bytes], limit_s: float) -> bytes:
        """Read one frame. Raises SandboxEnded."""
        assert process.stdout is not None
        until_s = time.monotonic() + limit_s
        try:
            head = self._read(process.stdout.fileno(), HEAD_BYTES, until_s)
            return self._read(process.stdout.fileno(), int.from_bytes(head), until_s)
        except EOFError:
            cause = f"it needs too much memory to compile (limit {self._limits.max_bytes} bytes)"
            was_killed = process.wait() == -signal.SIGKILL  # its own limit ends it in another way
            raise (_Killed if was_killed else SandboxEnded)(cause) from None

    def _read(self, descriptor: int, size: int, until_s: float) -> bytes:
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise SandboxEnded(f"it takes longer than {self._limits.time_s:g} s to compile")
                part = os.read(descriptor, size - len(data))
                if not part:
                    raise EOFError
                data += part
        return data

"""Runs `penstock serve` as a child process and reads its health, metrics and log."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

# A start takes 5 to 12 s on a quiet machine, and half a minute of CPU time where no compiled loop is cached.
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 120.0
PATIENCE_S = 60.0
"""For what must happen, at least: less would say more about a busy machine than about the product."""
POLL_S = 0.05
# What polls: a client per question would cost ten times as much, and connections end with their servers.
HTTP = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)
# The default takes a gigabyte per engine; most tests fill a few pages.
SMALL_ENGINE = '{engine: {checkpoint: "builtin:pico-small", kv_cache_bytes: 33554432}}'


class Server:
    """One `penstock serve` with its engine and encoder processes."""

    def __init__(
        self, log: Path, *arguments: str, api_key: str = "", environment: dict[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.api_key = api_key
        self.root_url = f"http://127.0.0.1:{self.port}"
        self.base_url = self.root_url + "/v1"
        self._log = log
        self.data_dir = log.parent / "data"
        keys = ["--api-key", api_key] if api_key else []
        command = [sys.executable, "-m", "gateway.cli", "serve", "--port", str(self.port), *keys, *arguments]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=clean_environment({"PENSTOCK_DATA_DIR": str(self.data_dir), **(environment or {})}),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """Everything that its processes have printed."""
        return self._log.read_text(errors="replace")

    @property
    def headers(self) -> dict[str, str]:
        """The request headers that authenticate."""
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def is_ready(self) -> bool:
        """True when /health/ready answers 200."""
        try:
            return HTTP.get(self.root_url + "/health/ready", timeout=2.0).status_code == 200
        except httpx.TransportError:
            return False

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the server is ready; AssertionError with its log when it exits or times out."""

        def ready() -> bool:
            assert self.process.poll() is None, (
                f"penstock serve exited with {self.process.poll()}:\n{self.log}"
            )
            return self.is_ready()

        wait_until(ready, timeout_s, lambda: f"not ready; log:\n{self.log}")

    def samples(self, name: str, **labels: str) -> list[Sample]:
        """The samples of `name` with `labels`. The others, thousands in places, are not parsed."""
        page = HTTP.get(self.root_url + "/metrics", headers=self.headers, timeout=30.0).text
        lines = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(name))
        return [
            sample
            for family in text_string_to_metric_families(lines)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of `name` with `labels`; 0.0 without any."""
        return sum(sample.value for sample in self.samples(name, **labels))

    def wait_metric(
        self, name: str, holds: Callable[[float], bool], timeout_s: float = 10.0, **labels: str
    ) -> None:
        """Wait until the metric satisfies `holds`."""
        wait_until(
            lambda: holds(self.metric(name, **labels)),
            timeout_s,
            lambda: f"{name} is {self.metric(name, **labels)}",
        )

    def settle(self) -> None:
        """Wait until all requests are counted: a gateway counts one after the last byte of its answer."""
        self.wait_metric("penstock_requests_in_flight", lambda value: value == 0)

    def engine_pids(self) -> list[int]:
        """The ids of its engine processes."""
        return [
            pid
            for pid in descendants(self.process.pid)
            if b"backend.server.engine_process" in command_line(pid)
        ]

    def backend_pids(self) -> list[int]:
        """The ids of its engine and encoder processes."""
        pids = descendants(self.process.pid)
        return [pid for pid in pids if b"backend.server." in command_line(pid)]

    def worker_pids(self) -> list[int]:
        """The ids of its gateway workers."""
        return [pid for pid in descendants(self.process.pid) if b"gateway.wiring.worker" in command_line(pid)]

    def terminate(self) -> int:
        """Send SIGTERM and wait. Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """End all of its processes, gracefully if possible."""
        if self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.terminate()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # start_new_session made the pid the group's id
        self.process.wait()


def wait_until(holds: Callable[[], bool], timeout_s: float, message: Callable[[], str]) -> None:
    """Poll `holds` until it is true; AssertionError with `message` after `timeout_s`, a minute at least."""
    timeout_s = max(timeout_s, PATIENCE_S)
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"after {timeout_s} s: {message()}"
        time.sleep(POLL_S)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def descendants(pid: int) -> Iterator[int]:
    """Children of `pid`, their children and so on, from /proc."""
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for found in child.read_text().split():
                yield int(found)
                yield from descendants(int(found))


def command_line(pid: int) -> bytes:
    """The arguments of a process, empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def clean_environment(extra: dict[str, str]) -> dict[str, str]:
    """Our environment without variables that change the server, plus `extra`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PENSTOCK_", "HF_"))}
    return {**kept, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **extra}

"""Servers under test: a command that listens on a URL, started for one round and then ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.e2e.server import descendants, free_port

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
API_KEY = "sk-bench"


@dataclass(frozen=True)
class Target:
    """How to start and reach one server. `url` ends in /v1; without a command it is running already."""

    name: str
    url: str
    model: str
    command: Sequence[str] = ()
    key: str = API_KEY
    environment: dict[str, str] = field(default_factory=dict)


def ours(
    name: str,
    models: dict[str, object],
    model: str,
    *arguments: str,
    prefix: Sequence[str] = (),
    sections: dict[str, object] | None = None,
) -> Target:
    """`penstock serve` with `models` (as in a policy file), other `sections`, and nothing else."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": models, **(sections or {})}))
    port = free_port()
    serve = (
        "-m",
        "gateway.cli",
        "serve",
        "--policies",
        str(folder),
        "--port",
        str(port),
        "--api-key",
        API_KEY,
    )
    command = (*prefix, sys.executable, *serve, *arguments)
    return Target(name, f"http://127.0.0.1:{port}/v1", model, command)


def our_engine(name: str, checkpoint: Path, **options: object) -> Target:
    """Our gateway and engine with `checkpoint`; options as in the `engine` section of a policy."""
    return ours(name, {"bench": {"engine": {"checkpoint": str(checkpoint), **options}}}, "bench")


def parse_peer(text: str) -> Target:
    """`NAME=URL[#MODEL][ COMMAND …]`: another server, as given on the command line."""
    name, _, rest = text.partition("=")
    address, _, command = rest.partition(" ")
    url, _, model = address.partition("#")
    assert name and url.startswith("http"), f"{text!r}: write NAME=URL[#MODEL][ COMMAND ...]"
    return Target(name, url.rstrip("/"), model or "bench", tuple(shlex.split(command)))


@contextlib.contextmanager
def running(target: Target) -> Iterator[int | None]:
    """Start the target, wait until it is ready, and end its process group afterwards; yields its pid."""
    if not target.command:
        yield None
        return
    with tempfile.NamedTemporaryFile(prefix=f"{target.name}-", suffix=".log", delete=False) as log:
        process = subprocess.Popen(
            list(target.command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **target.environment},
            start_new_session=True,
        )
    try:
        _wait_ready(target, process, Path(log.name))
        yield process.pid
    finally:
        _stop(process)


def cpu_time_s(pid: int) -> float:
    """CPU seconds of a process and its descendants."""
    ticks = 0
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])  # utime and stime
    return ticks / os.sysconf("SC_CLK_TCK")


def _wait_ready(target: Target, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    is_ours = "gateway.cli" in target.command
    url = target.url.removesuffix("/v1") + "/health/ready" if is_ours else target.url + "/models"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {target.key}"})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=2):
                return
        except urllib.error.HTTPError as error:
            if not is_ours and error.code in (401, 403, 404, 405):  # it answers, but has no list of models
                return
        except OSError:
            pass
        assert process.poll() is None, (
            f"{target.name} exited with {process.poll()}:\n{log.read_text()[-2000:]}"
        )
        assert time.monotonic() < deadline_s, f"{target.name} is not ready, see {log}"
        time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

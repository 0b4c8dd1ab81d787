"""Runs `penstock engine`, and what else serves no HTTP, as a child process, as another machine would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.server import STOP_TIMEOUT_S, clean_environment


class RemoteEngine:
    """One engine process without a gateway."""

    command = "engine"

    def __init__(self, log: Path, *arguments: str, secrets: dict[str, str] | None = None) -> None:
        self._log = log
        command = [sys.executable, "-m", "gateway.cli", self.command, *arguments]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=clean_environment({"PENSTOCK_DATA_DIR": str(log.parent / "data"), **(secrets or {})}),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """Everything that it has printed."""
        return self._log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)

    def terminate(self) -> int:
        """Send SIGTERM and wait. Returns the exit code."""
        self.send(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


class EndpointPickerProcess(RemoteEngine):
    """`penstock endpoint-picker`."""

    command = "endpoint-picker"

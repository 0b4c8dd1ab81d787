"""A PostgreSQL server of the test's own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

USER = "postgres" if os.geteuid() == 0 else None
"""The user of the server, which refuses to run as root."""


class PostgresServer:
    """Debian's server on a free port, in a folder of its own."""

    def __init__(self) -> None:
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not binaries:
            pytest.skip("PostgreSQL is missing: apt-get install postgresql")
        self._binaries = binaries[-1]
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        if USER is not None:
            shutil.chown(self._folder, USER)
        options = {"stdout": subprocess.DEVNULL, "user": USER, "cwd": self._folder}
        self._options: dict[str, Any] = options
        initdb = ["initdb", "-D", "data", "-U", "penstock", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
        subprocess.run([self._binaries / initdb[0], *initdb[1:]], check=True, **options)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"postgresql://penstock@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        flags = ["-D", "data", "-p", str(self.port), "-k", str(self._folder), "-F"]
        command = [self._binaries / "postgres", *flags]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **self._options)
        until_s = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < until_s and self._process.poll() is None
                time.sleep(0.02)

    def stop(self) -> None:
        """At once, its connections cut."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)

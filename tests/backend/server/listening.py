"""Listening Unix sockets, as the supervisor makes them for engine and encoder processes."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path


def listen(path: Path) -> socket.socket:
    """A listening socket at `path`; replaces one that a dead process left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


def start_process(kind: str, path: Path, config: bytes, *options: str) -> subprocess.Popen[str]:
    """A real engine or encoder process that listens at `path`; its outputs are pipes."""
    with listen(path) as listener:
        fd = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", f"backend.server.{kind}_process", "--listen-fd", str(fd), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[fd],
        )
    assert process.stdin is not None
    process.stdin.write(config.decode() + "\n")
    process.stdin.flush()
    return process

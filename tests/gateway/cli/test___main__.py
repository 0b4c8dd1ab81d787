"""How the command ends: a closed pipe and Ctrl-C are no tracebacks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gateway.cli import main as cli
from gateway.cli.__main__ import EXIT_CLOSED_PIPE, EXIT_INTERRUPTED, run


def test_a_reader_who_leaves_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gateway.cli", "schema"]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (EXIT_CLOSED_PIPE, b"")


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    assert run() == EXIT_INTERRUPTED

"""A sandbox that is killed from outside refuses nothing: the grammar is not to blame."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from backend.structured.sandbox import Sandbox, SandboxLimits, SandboxLost
from tests.backend.structured.pico import PICO

SOURCE = "start: /[ab]+/"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    found = Sandbox(PICO, 1536, [2], SandboxLimits(time_s=20.0, max_bytes=600 << 20))
    yield found
    found.close()


def kill(sandbox: Sandbox) -> None:
    assert sandbox._process is not None
    sandbox._process.kill()


def test_one_that_was_killed_is_asked_once_more(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it was idle, and at work; twice, and the machine is to blame."""
    found, _ = sandbox.check(SOURCE)
    kill(sandbox)
    assert sandbox.check(SOURCE)[0] == found
    read, kills = Sandbox._read, [1]

    def killing(self: Sandbox, process: subprocess.Popen[bytes], size: int, until_s: float) -> bytes:
        if kills and self._process is not None:
            kills.pop()
            kill(self)
            assert self._process.wait() < 0
            assert process.stdout is not None
            process.stdout.read()  # where it was fast, its answer is there already
        return read(self, process, size, until_s)

    monkeypatch.setattr(Sandbox, "_read", killing)
    assert sandbox.check(SOURCE)[0] == found and not kills
    kills += [1, 1]
    with pytest.raises(SandboxLost, match="killed by signal 9"):
        sandbox.check(SOURCE)

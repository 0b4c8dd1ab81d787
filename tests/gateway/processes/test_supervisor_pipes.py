"""A worker reads lines however they arrive, and a supervisor that does not read never blocks it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gateway.processes.managed_process import Progress
from gateway.processes.messages import Activate, StatusReport, ToWorker, encode
from gateway.processes.status import ProcessStatus
from gateway.processes.supervisor_pipes import SupervisorPipes

LOADING = encode(StatusReport({"m": ProcessStatus(phase="loading", fraction=0.5)}))
READY = encode(StatusReport({"m": ProcessStatus(phase="ready", fraction=1.0)}))


@pytest.fixture
def ends() -> Iterator[tuple[SupervisorPipes, int, int]]:
    """The worker's end, and the supervisor's: where it writes and where it reads."""
    (stdin, write), (read, stdout) = os.pipe(), os.pipe()
    os.set_blocking(read, False)
    yield SupervisorPipes(stdin, stdout), write, read
    for fd in (stdin, read, stdout):
        os.close(fd)


def test_statuses_follow_the_configuration(ends: tuple[SupervisorPipes, int, int]) -> None:
    pipes, write, _ = ends
    os.write(write, b"config\n" + LOADING[:10])
    assert pipes.read_line() == b"config"
    os.write(write, LOADING[10:])
    assert pipes.receive() and pipes.statuses["m"].phase == "loading"
    os.write(write, READY[:-1])
    assert pipes.receive() and pipes.statuses["m"].phase == "loading"
    os.write(write, READY[-1:])
    assert pipes.receive() and pipes.statuses["m"].phase == "ready"
    os.close(write)
    assert not pipes.receive()


def test_other_messages_are_passed_on(ends: tuple[SupervisorPipes, int, int]) -> None:
    pipes, write, _ = ends
    found: list[ToWorker] = []
    pipes.on_message = found.append
    os.write(write, encode(Activate(3)) + READY)
    assert pipes.receive() and found == [Activate(3)] and pipes.statuses["m"].phase == "ready"


def test_what_comes_with_the_configuration_is_not_left_waiting(
    ends: tuple[SupervisorPipes, int, int],
) -> None:
    pipes, write, _ = ends
    os.write(write, b"config\n" + READY)
    assert pipes.read_line() == b"config"
    pipes.dispatch()
    assert pipes.statuses["m"].phase == "ready"


def test_a_supervisor_that_is_gone(ends: tuple[SupervisorPipes, int, int]) -> None:
    pipes, write, _ = ends
    os.close(write)
    assert pipes.read_line() == b""


def test_a_supervisor_that_does_not_read(ends: tuple[SupervisorPipes, int, int]) -> None:
    pipes, write, read = ends
    for _ in range(10_000):
        pipes.report(Progress("ready", 1.0))
    first, *_ = os.read(read, 1 << 20).split(b"\n")
    assert first == b'{"phase":"ready","fraction":1.0}'
    os.close(write)

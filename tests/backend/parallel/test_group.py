from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from backend.errors import CheckpointError
from backend.parallel.group import RankError, start
from backend.parallel.messages import Place
from tests.backend.parallel.conftest import TwoRanks

LIMIT_S = 60


def test_another_number_of_ranks_than_torchrun_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(CheckpointError, match="parallel asks for 2 ranks.*WORLD_SIZE '3'"):
        start(2)


def test_errors_of_others_are_raised_here_and_no_more_than_once(two_ranks: TwoRanks) -> None:
    mirror = two_ranks.model.mirror
    mirror.tell(Place(slot=0, digest="d", rank=1, factors={"no.such.module": (1, bytes(4), bytes(4))}))
    with pytest.raises(RankError, match="rank 1: KeyError: 'no.such.module'"):
        mirror.group.settle()
    assert two_ranks.model.with_common_pages(0).num_pages == 64


def test_a_message_of_any_length_arrives(two_ranks: TwoRanks) -> None:
    for length in (1, 5000, 300_000):
        factors = {"x" * length: (1, bytes(4), bytes(4))}
        two_ranks.model.mirror.tell(Place(slot=0, digest="d", rank=1, factors=factors))
        with pytest.raises(RankError, match="rank 1: KeyError: 'x"):
            two_ranks.model.mirror.group.settle()


def test_what_fails_is_attempted_no_further(two_ranks: TwoRanks) -> None:
    group = two_ranks.model.mirror.group
    ran: list[int] = []
    assert group.attempt(int, "x") is None and group.attempt(ran.append, 1) is None
    assert ran == []
    error, group._error = group._error, None
    assert isinstance(error, ValueError)


JOINING = """
import sys
from backend.parallel.group import join, start
group = start(2) if sys.argv[1] == "0" else join()
print(group.broadcast(b"hello" if group.rank == 0 else b"").decode(), flush=True)
if sys.stdin.readline() == "close\\n":
    group.close()
"""


@pytest.fixture
def joined() -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that found each other by torchrun's variables."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    pipe = subprocess.PIPE
    found = [
        subprocess.Popen(
            [sys.executable, "-c", JOINING, rank],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=os.environ | variables | {"RANK": rank, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in "01"
    ]
    for process in found:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello\n"
    yield found
    for process in found:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_ranks_that_joined_end_with_any_of_them_while_they_wait(
    joined: list[subprocess.Popen[str]], lost: int
) -> None:
    joined[lost].kill()
    other = joined[1 - lost]
    assert other.wait(LIMIT_S) == 1
    assert other.stderr is not None
    assert f"rank {1 - lost} lost rank {lost}; the engine ends" in other.stderr.read()


@pytest.mark.slow  # two more processes that load torch
def test_ranks_that_leave_together_end_well(joined: list[subprocess.Popen[str]]) -> None:
    for process in joined:
        assert process.stdin is not None
        process.stdin.write("close\n")
        process.stdin.flush()
    assert [process.wait(LIMIT_S) for process in joined] == [0, 0]

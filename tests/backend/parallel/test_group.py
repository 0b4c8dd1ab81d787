from __future__ import annotations

import pytest

from backend.errors import CheckpointError
from backend.parallel.group import RankError, start
from backend.parallel.messages import Place
from tests.backend.parallel.conftest import TwoRanks


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

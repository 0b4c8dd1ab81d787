"""Workers see at once what one of them writes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gateway.errors import Unavailable
from gateway.fleet.board import MAX_TRIES, NUM_SLOTS, Board
from gateway.fleet.health import MAX_FAILURES_IN_ROW, PROBE_S, Health
from gateway.telemetry.shared_counters import new_counter_file
from tests.gateway.fleet.clock import Clock


@pytest.fixture
def fd() -> Iterator[int]:
    found = new_counter_file()
    yield found
    os.close(found)


def test_a_name_has_one_slot_in_all_workers(fd: int) -> None:
    ours, theirs = Board(fd).slot("a"), Board(fd).slot("a")
    other = Board(fd).slot("b")
    assert ours is not None and theirs is not None and other is not None
    ours.write(7.5, 2)
    assert theirs.read() == (7.5, 2) and other.read() == (0.0, 0)


def test_without_a_free_slot_nothing_is_shared() -> None:
    board = Board()
    found = [board.slot(str(number)) for number in range(2 * NUM_SLOTS)]
    assert NUM_SLOTS // MAX_TRIES < sum(each is not None for each in found) <= NUM_SLOTS
    assert None in found


def test_one_worker_finds_out_for_all(fd: int) -> None:
    clock = Clock()
    ours, theirs = (Health("m", clock, slot=Board(fd).slot("m")) for _ in range(2))
    before = theirs.num_pauses
    for _ in range(MAX_FAILURES_IN_ROW):
        ours.failed("failing", Unavailable("x"))
    assert theirs.trouble == "failing"
    theirs.answered(before)  # a call that began before
    assert ours.trouble == theirs.trouble == "failing"
    clock.now_s = 5.0
    assert theirs.trouble is None and theirs.begin()
    assert ours.trouble == "failing" and not ours.begin()  # one probe for all
    clock.now_s += PROBE_S / 2
    theirs.answered(theirs.num_pauses)
    assert ours.trouble is theirs.trouble is None and not ours.begin()

"""Reads run one at a time, and one that hangs delays neither the others nor the end of the process."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import CancelledError
from threading import Event

import pytest

from backend.errors import AdapterError
from backend.lora.bounded_reader import BoundedReader

PROGRAM = """
from threading import Event
from backend.lora.bounded_reader import BoundedReader
begun = Event()
reader = BoundedReader()
reader.submit(lambda: begun.set() or Event().wait(), "what hangs")
assert begun.wait(20)
reader.close()
print("over")
"""


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_one_at_a_time() -> None:
    may_end, begun = Event(), Event()
    reader = BoundedReader[bool]()
    first = reader.submit(lambda: may_end.wait(20), "first")
    second = reader.submit(lambda: begun.set() or True, "second")
    reader.advance()
    assert not begun.is_set()
    may_end.set()
    assert first.result(20)
    reader.advance()
    assert second.result(20) and begun.is_set()
    assert reader.call(lambda: True, "third")


def test_what_a_read_raises_is_its_callers() -> None:
    reader = BoundedReader[int]()
    with pytest.raises(ZeroDivisionError):
        reader.call(lambda: 1 // 0, "nothing")
    assert reader.call(lambda: 1, "one") == 1


def test_a_read_that_hangs_is_given_up_and_the_next_has_its_turn() -> None:
    clock, hangs, late = Clock(), Event(), Event()
    reader = BoundedReader[bool](limit_s=30.0, clock=clock)

    def hang() -> bool:
        hangs.wait(20)
        late.set()
        return True

    first = reader.submit(hang, "/dead/adapter")
    second = reader.submit(lambda: True, "/good/adapter")
    clock.now_s = 29.9
    reader.advance()
    assert not first.done() and not second.done()
    clock.now_s = 30.0
    reader.advance()
    assert second.result(20)
    with pytest.raises(AdapterError, match="/dead/adapter was not read within 30 s; see if its disk answers"):
        first.result()
    hangs.set()
    assert late.wait(20) and reader.call(lambda: True, "the next"), "a late result is ignored"


def test_closing_begins_nothing_more() -> None:
    may_end = Event()
    reader = BoundedReader[bool]()
    first = reader.submit(lambda: may_end.wait(20), "first")
    second = reader.submit(lambda: True, "second")
    may_end.set()
    reader.close()
    assert first.result(20)
    with pytest.raises(CancelledError):
        second.result()


def test_a_process_ends_while_a_read_hangs() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=60, check=True)
    assert ended.stdout == b"over\n"

from __future__ import annotations

from gateway.fleet.window import Window
from tests.gateway.fleet.clock import Clock


def test_the_sums_are_those_of_the_last_seconds() -> None:
    clock = Clock()
    window = Window(10, clock)
    window.add(calls=3, marked=1)
    clock.now_s = 9.9
    window.add(calls=1)
    assert (window.calls, window.marked, window.now().calls) == (4, 1, 1)
    clock.now_s = 10.0
    assert window.now().calls == 0
    assert (window.calls, window.marked) == (1, 0)

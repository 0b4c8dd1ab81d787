"""Targets that fail are left out, unless too many do; of two that are drawn the less loaded one is asked."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from gateway.answer import Embedded, Usage
from gateway.errors import RateLimited, Unavailable
from gateway.fleet.choice import healthy, less_loaded
from gateway.fleet.health import MAX_FAILURES_IN_ROW, Health
from gateway.fleet.target import Target
from gateway.providers.fake import FakeProvider
from tests.gateway.fleet.clock import Clock


def targets_of(count: int, clock: Clock, weights: Sequence[float] = ()) -> list[Target]:
    return [
        Target(
            FakeProvider(),
            Health(str(number), clock),
            place=str(number),
            weight=weights[number] if weights else 1.0,
            clock=clock,
        )
        for number in range(count)
    ]


def put_out(target: Target) -> None:
    for _ in range(MAX_FAILURES_IN_ROW):
        target.begin().fail(Unavailable("x"))


def measure(target: Target, took_s: float, clock: Clock) -> None:
    call = target.begin()
    clock.now_s += took_s
    call.follow(Embedded([], Usage()))


def test_at_most_half_are_left_out() -> None:
    clock = Clock()
    targets = targets_of(4, clock)
    for number, target in enumerate(targets[:3]):
        clock.now_s = float(number)
        put_out(target)
    assert healthy(targets) == [targets[0], targets[3]]  # the one that has waited longest comes back
    put_out(targets[3])
    assert healthy(targets) == targets


def test_what_limits_the_rate_does_not_come_back_before_its_time() -> None:
    targets = targets_of(3, Clock())
    for target in targets[:2]:
        target.begin().fail(RateLimited("x"))
    assert healthy(targets) == targets[2:]


def test_the_faster_one_is_asked() -> None:
    clock = Clock()
    fast, slow = targets_of(2, clock)
    measure(fast, 0.1, clock)
    measure(slow, 0.5, clock)
    draw = random.Random(1).random
    assert {less_loaded([fast, slow], draw) for _ in range(20)} == {fast}
    for _ in range(5):
        fast.begin()
    assert {less_loaded([fast, slow], draw) for _ in range(20)} == {slow}


def test_weights_are_capacities() -> None:
    clock = Clock()
    targets = targets_of(2, clock, weights=[3.0, 1.0])
    for target in targets:
        measure(target, 0.1, clock)
    draw = random.Random(1).random
    asked = Counter[str]()
    for _ in range(40):
        target = less_loaded(targets, draw)
        target.begin()
        asked[target.place] += 1
    assert 28 <= asked["0"] <= 32


def test_a_target_that_was_never_measured_gets_one_call_at_a_time() -> None:
    clock = Clock()
    known, new = targets_of(2, clock)
    measure(known, 0.1, clock)
    draw = random.Random(1).random
    assert less_loaded([known, new], draw) is new
    call = new.begin()
    assert {less_loaded([known, new], draw) for _ in range(20)} == {known}
    call.abandon()
    assert less_loaded([known, new], draw) is new


def test_load_spreads_over_many() -> None:
    clock = Clock()
    targets = targets_of(5, clock)
    for target in targets:
        measure(target, 0.1, clock)
    draw = random.Random(1).random
    asked = Counter[str]()
    for _ in range(500):
        target = less_loaded(targets, draw)
        target.begin()
        asked[target.place] += 1
    assert min(asked.values()) > 90

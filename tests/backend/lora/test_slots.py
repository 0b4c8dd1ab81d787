"""Slots: pinned while used, given in turns that serve a batch, without starvation."""

from __future__ import annotations

import random

from backend.lora.slots import AdapterSlots
from backend.types import Request, SamplingParams, Sequence


class House:
    """Slots under a queue, first come first served, with at most `max_running` sequences."""

    def __init__(self, num_slots: int, max_running: int = 100) -> None:
        self.now_s = 0.0
        self.loaded = lambda adapter: True
        self.slots = AdapterSlots(num_slots, lambda a: self.loaded(a), self.is_wanted, self.clock)
        self.max_running = max_running
        self.queue: list[Sequence] = []
        self.running: list[Sequence] = []
        self.done: list[Sequence] = []

    def clock(self) -> float:
        return self.now_s

    def is_wanted(self, adapter: str) -> bool:
        return any(sequence.request.adapter == adapter for sequence in self.queue + self.running)

    def ask(self, adapter: str) -> Sequence:
        self.now_s += 1.0
        params = SamplingParams(max_tokens=1)
        request = Request(request_id=str(self.now_s), prompt_token_ids=[1], params=params, adapter=adapter)
        sequence = Sequence(request, [1], 1, arrival_s=self.now_s)
        self.queue.append(sequence)
        return sequence

    def admit(self) -> None:
        self.now_s += 1.0
        self.slots.begin_pass()
        for sequence in list(self.queue):
            if len(self.running) == self.max_running:
                break
            if self.slots.admits(sequence):
                self.slots.take(sequence)
                self.queue.remove(sequence)
                self.running.append(sequence)
        self.slots.check_invariants(self.running)

    def finish(self, sequence: Sequence) -> None:
        self.slots.give_back(sequence)
        self.running.remove(sequence)
        self.done.append(sequence)

    def names(self) -> list[str]:
        return [sequence.request.adapter for sequence in self.running]


def test_a_slot_is_shared_and_stays_pinned_while_it_is_used() -> None:
    house = House(1)
    first, second, _ = house.ask("a"), house.ask("a"), house.ask("b")
    house.admit()
    assert house.names() == ["a", "a"] and first.adapter_slot == second.adapter_slot == 0
    assert house.slots.pending == {0: "a"}
    house.slots.filled(0)
    assert house.slots.pending == {}
    house.finish(first)
    house.admit()
    assert house.names() == ["a"]
    house.finish(second)
    house.admit()
    assert house.names() == ["b"]
    assert house.slots.pending == {0: "b"} and house.slots.loads_total == 2


def test_newcomers_do_not_starve_who_waits_for_a_slot() -> None:
    house = House(2)
    for name in ("a", "b", "c"):
        house.ask(name)
    house.admit()
    assert house.names() == ["a", "b"]
    for _ in range(3):  # both stay busy
        house.ask("a")
        house.ask("b")
        house.admit()
    assert house.names().count("a") == 1, "the longest turn is over"
    assert house.names().count("b") == 4, "the other goes on"
    house.finish(house.running[0])
    house.admit()
    assert "c" in house.names()


def test_a_turn_serves_all_that_wait() -> None:
    house = House(2, max_running=4)
    for _ in range(10):
        for name in "abcd":
            house.ask(name)
    steps = 0
    while house.queue or house.running:
        house.admit()
        house.finish(house.running[0])
        steps += 1
    assert house.slots.loads_total == 4, "one turn each"
    assert steps <= 44


def test_who_is_not_read_yet_is_passed_over() -> None:
    house = House(1)
    house.loaded = lambda adapter: adapter != "a"
    house.ask("a")
    house.ask("b")
    house.admit()
    assert house.names() == ["b"]
    house.finish(house.running[0])
    house.loaded = lambda adapter: True
    house.admit()
    assert house.names() == ["a"]


def test_the_least_recently_used_goes_first_and_what_is_wanted_stays() -> None:
    house = House(3, max_running=3)
    for name in ("a", "b", "c"):
        house.ask(name)
    house.admit()
    for sequence in list(house.running):
        house.finish(sequence)
    house.ask("d")
    house.ask("a")
    house.admit()
    assert set(house.slots.resident) == {"a", "c", "d"}, "b was used less recently than c, a is wanted"
    house.slots.forget("c")
    assert set(house.slots.resident) == {"a", "d"}


def test_random_traffic_is_served_without_thrash() -> None:
    rng = random.Random(4)
    house = House(8, max_running=16)
    asked = [house.ask(f"n{rng.randrange(50)}") for _ in range(100)]
    while house.queue or house.running:
        house.admit()
        assert house.running, "somebody can always run"
        house.finish(rng.choice(house.running))
        if len(asked) < 600:
            asked.append(house.ask(f"n{rng.randrange(50)}"))
    assert len(house.done) == len(asked)
    assert house.slots.loads_total < 0.8 * len(asked)

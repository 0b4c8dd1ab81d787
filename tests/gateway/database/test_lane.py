"""Turns of tenants in a lane."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.database.lane import Lane


class Held:
    """A lane of one thread whose first work waits until `go` is set."""

    def __init__(self) -> None:
        self.lane = Lane("test", 1)
        self.go = threading.Event()
        self.done: list[str] = []
        self.first = asyncio.create_task(self.lane.run(lambda: self.go.wait(5), "flood"))

    def ask(self, name: str, tenant: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.lane.run(lambda: self.done.append(name), tenant))


async def begun() -> Held:
    held = Held()
    await asyncio.sleep(0)
    return held


async def test_one_tenants_flood_delays_the_others_by_a_turn() -> None:
    held = await begun()
    tasks = [held.ask(f"flood {number}", "flood") for number in range(50)]
    await asyncio.sleep(0)
    tasks += [held.ask(f"{tenant} {number}", tenant) for tenant in "ab" for number in range(2)]
    await asyncio.sleep(0)
    held.go.set()
    await asyncio.gather(*tasks)
    assert held.done[:7] == ["flood 0", "a 0", "b 0", "flood 1", "a 1", "b 1", "flood 2"]
    assert len(held.done) == 54
    await held.lane.close()


async def test_who_leaves_gives_the_turn_on() -> None:
    held = await begun()
    leaving, staying = held.ask("leaves", "a"), held.ask("stays", "b")
    await asyncio.sleep(0)
    leaving.cancel()
    held.first.cancel()  # its work goes on, and has the thread until its end
    await asyncio.gather(leaving, held.first, return_exceptions=True)
    assert held.done == []
    held.go.set()
    await staying
    assert held.done == ["stays"]
    await held.lane.close()


async def test_what_work_raises_is_raised_and_the_lane_goes_on() -> None:
    lane = Lane("test", 1)

    def fail() -> None:
        raise ValueError("lost")

    for _ in range(3):
        with pytest.raises(ValueError, match="lost"):
            await lane.run(fail, "a")
    assert await lane.run(lambda: 1, "a") == 1
    await lane.close()

"""Threads for long texts: shared fairly, bounded, and told when nothing waits for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.errors import RateLimited
from gateway.screening.threads import (
    MAX_ENCODER_MESSAGES,
    FairThreads,
    TenantThreads,
)
from guardrails.cancellation import Cancelled, check_cancelled
from guardrails.screen.guard import MAX_TEXTS, Guard
from guardrails.screen.threads import THREAD_FROM_CHARS, is_long
from policies.guardrails import GuardrailProfile

LIMIT_S = 20.0


def until(opened: threading.Event) -> Callable[[], str]:
    def work() -> str:
        assert opened.wait(LIMIT_S)
        return threading.current_thread().name

    return work


async def test_a_tenant_that_floods_leaves_a_thread_to_the_others() -> None:
    threads, opened = FairThreads(num_threads=2), threading.Event()
    flood = [asyncio.create_task(threads.run(until(opened), "a")) for _ in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT_S):
        assert [await threads.run(lambda: "b", "b") for _ in range(3)] == ["b"] * 3
    assert not any(task.done() for task in flood)
    opened.set()
    assert await asyncio.gather(*flood) == ["screening"] * 20


async def test_tenants_take_turns() -> None:
    threads, opened, order = FairThreads(num_threads=1), threading.Event(), list[str]()
    first = asyncio.create_task(threads.run(until(opened), "z"))
    await asyncio.sleep(0)
    names = ["a", "a", "a", "b", "b", "c"]
    tasks = [asyncio.create_task(threads.run(lambda name=name: order.append(name), name)) for name in names]
    await asyncio.sleep(0)
    opened.set()
    await asyncio.gather(first, *tasks)
    assert order == ["a", "b", "c", "a", "b", "a"]


async def test_what_waits_is_bounded_by_tenant() -> None:
    threads, opened = FairThreads(num_threads=1, max_waiting=2), threading.Event()
    running = asyncio.create_task(threads.run(until(started := threading.Event()), "z"))
    tasks = [asyncio.create_task(threads.run(until(opened), "a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RateLimited, match="2 long texts of 'a' are waiting") as caught:
        await threads.run(until(opened), "a")
    assert caught.value.headers["retry-after"]
    other = asyncio.create_task(threads.run(until(opened), "b"))
    await asyncio.sleep(0)
    started.set()
    opened.set()
    await asyncio.gather(running, *tasks, other)


async def test_work_that_nothing_waits_for_ends() -> None:
    threads, started, ended = FairThreads(num_threads=1), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        try:
            while True:
                check_cancelled()
        except Cancelled:
            ended.set()
            raise

    task = asyncio.create_task(threads.run(work, "a"))
    waiting = asyncio.create_task(threads.run(lambda: pytest.fail("it was cancelled"), "a"))
    await asyncio.to_thread(started.wait, LIMIT_S)
    task.cancel()
    waiting.cancel()
    assert await asyncio.to_thread(ended.wait, LIMIT_S)
    assert await threads.run(lambda: "next", "a") == "next"  # the flag of the job before is not its own


async def test_errors_reach_the_caller() -> None:
    def fails() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await TenantThreads(FairThreads(), "a").run(fails, in_thread=True)


async def test_short_texts_stay_in_the_event_loop() -> None:
    threads = TenantThreads(FairThreads(), "a")
    assert await threads.run(threading.get_ident, in_thread=is_long(["x"])) == threading.get_ident()
    long = ["x" * (THREAD_FROM_CHARS - 1), "y"]
    assert await threads.run(threading.get_ident, in_thread=is_long(long)) != threading.get_ident()


def test_a_process_that_ends_does_not_wait_for_them() -> None:
    script = (
        "import asyncio, threading\n"
        "from gateway.screening.threads import FairThreads\n"
        "async def main():\n"
        "    started = threading.Event()\n"
        "    def work():\n"
        "        started.set()\n"
        "        while True: pass\n"
        "    task = asyncio.create_task(FairThreads().run(work, 'a'))\n"
        "    await asyncio.to_thread(started.wait)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=LIMIT_S).returncode == 0


async def test_a_tenant_has_few_messages_at_the_encoder_and_others_their_own() -> None:
    threads, opened = FairThreads(), asyncio.Event()
    running: list[str] = []

    async def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        running.append(texts[0][0])
        await opened.wait()
        return np.zeros((len(texts), 4), np.float32)

    guard = Guard(GuardrailProfile(timeout_ms=60_000), embed, {}, threads=threads)
    a, b = TenantThreads(threads, "a"), TenantThreads(threads, "b")
    texts = [f"a{number}" for number in range(4 * MAX_TEXTS)]
    tasks = [asyncio.create_task(guard.vectors(texts, a.encoder_turn)) for _ in range(10)]
    tasks.append(asyncio.create_task(guard.vectors(["b"], b.encoder_turn)))
    for _ in range(20):  # turns of this loop: each task comes as far as it can
        await asyncio.sleep(0)
    assert sorted(running) == ["a"] * MAX_ENCODER_MESSAGES + ["b"]
    opened.set()
    assert {len(found) for found in await asyncio.gather(*tasks)} == {1, len(texts)}


async def test_a_long_text_has_the_time_limit_for_each_message() -> None:
    async def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        await asyncio.sleep(0.04)
        return np.zeros((len(texts), 4), np.float32)

    guard = Guard(GuardrailProfile(timeout_ms=1_000), embed, {}, threads=FairThreads())
    assert len(await guard.vectors(["x"] * 40 * MAX_TEXTS)) == 40 * MAX_TEXTS  # 1.6 s

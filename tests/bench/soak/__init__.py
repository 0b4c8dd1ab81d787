"""Mixed traffic for a long time: do memory, file descriptors, pages or latency drift? Exits 1 if so.

Streams, tools, grammars, adapters, embeddings, disconnects, slow readers, bad requests and a faulty provider,
all at once. Two idle moments, after the warm-up and at the end, are compared: in both every page is free.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import aiohttp

from tests.bench import report
from tests.bench.soak.course import Course
from tests.bench.soak.monitor import Monitor, Snapshot
from tests.bench.soak.traffic import Client
from tests.bench.soak.upstream import FAULTS, STALL_LIMIT_S, faulty_upstream
from tests.bench.targets import Target, ours, running

ADAPTERS = ("json", "si", "german")
KV_CACHE_BYTES = 64 * 2**20
"""Small, so that the warm-up has touched all of it: untouched pages are not resident."""
GRAMMAR_CACHE_BYTES = 8 * 2**20
"""Likewise: each request for a grammar has one that no other has."""
IDLE_S = 75.0
"""Longer than kept-alive connections live, on either side of the gateway."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench soak`."""
    parser.add_argument("--minutes", type=float, default=30.0, help="measured, after the warm-up")
    parser.add_argument("--warm-up-minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=8, help="concurrent clients, each in a closed loop")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", metavar="FILE", help="write a picture of the course, such as soak.png")


def run(arguments: argparse.Namespace) -> None:
    """Run, print the tables, plot, and exit with 1 where something drifted or answered wrongly."""
    course = asyncio.run(_soak(arguments))
    title = f"soak · {arguments.clients} clients · {arguments.minutes:g} min after warm-up"
    report.show(f"{title} · processes when idle", course.process_rows(), arguments.json)
    report.show(f"{title} · requests, first and last third", course.latency_rows(), arguments.json)
    if arguments.plot:
        from tests.bench.soak.plot import plot

        plot(course, Path(arguments.plot))
    found = course.failures()
    print("\n".join(f"  FAILED: {failure}" for failure in found) or "  nothing drifted")
    if found:
        raise SystemExit(1)


async def _soak(arguments: argparse.Namespace) -> Course:
    async with faulty_upstream() as port:
        target = ours("soak", _models(port), "pico-small")
        with running(target) as pid:
            assert pid is not None
            return await _phases(target, pid, arguments)


async def _phases(target: Target, pid: int, arguments: argparse.Namespace) -> Course:
    """Warm-up, idle, measured traffic, idle."""
    seeds = range(1000 * arguments.seed, 1000 * arguments.seed + arguments.clients)
    # The monitor has connections of its own: it would keep those of the clients open.
    async with aiohttp.ClientSession() as session, aiohttp.ClientSession() as monitors:
        clients = [Client(target, session, seed) for seed in seeds]
        monitor = Monitor(target, pid, monitors)
        async with monitor.watching(interval_s=max(1.0, arguments.minutes / 2)):
            await asyncio.gather(*(client.grammar() for client in clients))  # starts every sandbox
            idle: list[Snapshot] = []
            for minutes in (arguments.warm_up_minutes, arguments.minutes):
                until_s = time.perf_counter() + 60 * minutes
                await asyncio.gather(*(client.run(until_s) for client in clients))
                await asyncio.sleep(IDLE_S)
                idle.append(await monitor.snapshot())
    return Course(monitor.snapshots, [each for client in clients for each in client.sent], *idle)


def _models(port: int) -> dict[str, object]:
    """One engine with adapters, one encoder, and the provider's faults as models of their own."""
    adapters = {name: {"path": f"builtin:{name}"} for name in ADAPTERS}
    engine = {"checkpoint": "builtin:pico-small", "adapters": adapters}
    engine |= {"kv_cache_bytes": KV_CACHE_BYTES, "grammar_cache_bytes": GRAMMAR_CACHE_BYTES}
    models: dict[str, object] = {
        "pico-small": {"engine": engine},
        "all-minilm-l6-v2": {"encoder": {"checkpoint": "builtin:all-minilm-l6-v2"}},
    }
    for fault in FAULTS:
        upstream: dict[str, object] = {"base_url": f"http://127.0.0.1:{port}/{fault}/v1"}
        if fault == "stall":
            upstream["first_token_timeout_s"] = STALL_LIMIT_S
        models[fault] = {"upstream": upstream}
    return models

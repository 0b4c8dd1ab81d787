"""Mixed traffic over every door while processes are killed -9. Exits 1 if a request ended dishonestly.

Workers, engines, encoders, sandboxes and the supervisor, one every 20 s. Each request gets its right answer,
an error that names itself, or a cut that its client sees. What was acknowledged must be there at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench import report
from tests.bench.chaos import stored, traffic
from tests.bench.chaos.client import Client
from tests.bench.chaos.course import Course
from tests.bench.chaos.killer import Killed, kill_every
from tests.bench.chaos.stored import Stored, broken
from tests.bench.chaos.traffic import OTHER_KEY, Known, Traffic
from tests.bench.chaos.upstream import Echo, echo
from tests.bench.soak.upstream import STALL_LIMIT_S, faulty_upstream
from tests.bench.targets import Target, ours

END_LIMIT_S = 120.0
"""How long background responses and batches may take once nothing is killed any more."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench chaos`."""
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--every", type=float, default=20.0, metavar="SECONDS", help="between two kills")
    parser.add_argument("--clients", type=int, default=8, help="concurrent clients, each in a closed loop")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)


def run(arguments: argparse.Namespace) -> None:
    """Run, print the tables and PASSED or FAILED, and exit with 1 where a request ended wrongly."""
    course = asyncio.run(_chaos(arguments))
    length = f"{arguments.minutes:g} min · a kill every {arguments.every:g} s"
    title = f"chaos · {arguments.clients} clients · {length}"
    report.show(f"{title} · kills", course.kill_rows(), arguments.json)
    report.show(f"{title} · requests", course.request_rows(), arguments.json)
    found = course.failures()
    print("\n".join(f"  {failure}" for failure in found))
    print(f"{'FAILED' if found else 'PASSED'}: {len(course.sent)} requests, {len(course.kills)} kills")
    if found:
        raise SystemExit(1)


async def _chaos(arguments: argparse.Namespace) -> Course:
    folder = Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    async with echo() as upstream, faulty_upstream() as faulty_port:
        server = Killed(_target(arguments, folder, upstream.port, faulty_port), folder / "log.txt")
        print(f"log and state in {folder}")
        try:
            await server.start()
            return await _phases(server, upstream, folder, arguments)
        finally:
            server.close()


async def _phases(server: Killed, upstream: Echo, folder: Path, arguments: argparse.Namespace) -> Course:
    """Learn the answers, kill under traffic, then read everything again in peace."""
    draw, known = random.Random(arguments.seed), Known()
    root_url, key = server.target.url.removesuffix("/v1"), server.target.key
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        clients = [Client(root_url, session, key, draw.getrandbits(32)) for _ in range(arguments.clients)]
        await known.learn(clients[0])
        until_s = time.perf_counter() + 60 * arguments.minutes
        kept = [Stored(client) for client in clients]
        works = [
            _work(client, Traffic(client, known), each, until_s)
            for client, each in zip(clients, kept, strict=True)
        ]
        await asyncio.gather(kill_every(server, arguments.every, until_s, draw), *works)
        others = [] if await server.ready() is not None else ["not ready at the end"]
        for each in kept:
            others += await broken(each, END_LIMIT_S)
        others += await _idle_faults(session, root_url, key)
    others += [f"the upstream was asked {text!r}" for text in upstream.leaked]
    others += [fault for path in folder.rglob("*.sqlite*") if (fault := _database_fault(path))]
    sent = [each for client in clients for each in client.sent]
    return Course(sent, server.kills, [*traffic.KINDS, *stored.KINDS], others)


async def _work(client: Client, asked: Traffic, kept: Stored, until_s: float) -> None:
    """One request after the other."""
    weights = [weight for weight, _ in (*traffic.KINDS.values(), *stored.KINDS.values())]
    while time.perf_counter() < until_s:
        kind = client.random.choices([*traffic.KINDS, *stored.KINDS], weights)[0]
        if kind in traffic.KINDS:
            await client.judge(kind, lambda kind=kind: traffic.KINDS[kind][1](asked))  # type: ignore[misc]
        else:
            await client.judge(kind, lambda kind=kind: stored.KINDS[kind][1](kept))  # type: ignore[misc]


async def _idle_faults(session: aiohttp.ClientSession, root_url: str, key: str) -> Sequence[str]:
    """What still runs or holds memory when there are no requests."""
    found: dict[str, float] = {}
    for _ in range(50):  # those who left are noticed soon
        async with session.get(root_url + "/metrics", headers={"authorization": f"Bearer {key}"}) as response:
            lines = [line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[:1] != "#"]
        sums: dict[str, float] = {}
        for name, value in lines:
            sums[name.partition("{")[0]] = sums.get(name.partition("{")[0], 0.0) + float(value)
        used = sums["penstock_engine_total_pages"] - sums["penstock_engine_free_pages"]
        found = {"pages in use": used, "requests in flight": sums["penstock_requests_in_flight"]}
        if not any(found.values()):
            break
        await asyncio.sleep(0.2)
    return [f"{value:g} {name} when idle" for name, value in found.items() if value]


def _database_fault(path: Path) -> str:
    """What SQLite finds wrong with a file, "" for nothing."""
    if path.suffix in (".sqlite-wal", ".sqlite-shm"):
        return ""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute("PRAGMA integrity_check").fetchone()[0]
    return "" if found == "ok" else f"{path.name}: {found}"


def _target(arguments: argparse.Namespace, folder: Path, echo_port: int, faulty_port: int) -> Target:
    """One engine with adapters, one encoder, an honest upstream and some that fail."""
    own = {"base_url": f"http://127.0.0.1:{echo_port}/v1", "model": "echo"}
    adapters = {name: {"path": f"builtin:{name}"} for name in traffic.ADAPTERS}
    models: dict[str, Any] = {
        "pico": {
            "engine": {"checkpoint": "builtin:pico-small", "adapters": adapters, "kv_cache_bytes": 64 << 20}
        },
        "minilm": {"encoder": {"checkpoint": "builtin:all-minilm-l6-v2"}},
        "echo": {"upstream": own},
        "cached": {"upstream": own, "cache": {"mode": "exact"}},
        "guarded": {"upstream": own, "guardrails": "guarded"},
    }
    for fault in ("error", "garbage", "cut", "stall"):
        upstream: dict[str, Any] = {"base_url": f"http://127.0.0.1:{faulty_port}/{fault}/v1"}
        models[fault] = {"upstream": upstream | {"first_token_timeout_s": STALL_LIMIT_S}}
    profile = {"personal_data": {"kinds": ["email"]}, "injection": {}}
    sections: dict[str, object] = {
        "guardrails": {"profiles": {"guarded": profile}},
        "passthrough": {"/v1/audio": {"model": "echo"}},
    }
    target = ours(
        "chaos",
        models,
        "pico",
        "--workers",
        str(arguments.workers),
        "--api-key",
        OTHER_KEY,
        sections=sections,
    )
    return replace(target, environment={"PENSTOCK_DATA_DIR": str(folder / "data"), "OMP_NUM_THREADS": "1"})

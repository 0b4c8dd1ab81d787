"""Hits and misses by meaning through HTTP with many entries of one tenant, filled through a real Redis.

Gateway and encoder share core 0; upstream, Redis and client have core 1.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import redis
from numpy import float16

from cache.entry import Entry
from cache.question import normalised
from tests.bench import report
from tests.bench.cache import row, times_s
from tests.bench.gateway import MODEL, instant_upstream, on_core
from tests.bench.targets import Target, cpu_time_s, free_port, ours, running
from tests.cache.redis_server import RedisServer

PREFIX = "penstock-bench"
ASKED = "Which river flows through the city of Prague?"
PARAPHRASE = "which river flows through the city of prague"
MEMORY_BYTES = 4 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench cache_semantic`."""
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=1000, help="per case")


def run(arguments: argparse.Namespace) -> None:
    """Measure and print one row per case."""
    server, port = RedisServer(Path(tempfile.mkdtemp())), free_port()
    models: dict[str, object] = {
        MODEL: {"upstream": {"base_url": f"http://127.0.0.1:{port}/v1"}},
        "minilm": {"encoder": {"checkpoint": "builtin:all-minilm-l6-v2", "dtype": "int8", "num_threads": 1}},
    }
    try:
        with instant_upstream(port):
            found = _measure(models, server, arguments)
    finally:
        server.kill()
    plain = found["no cache"]
    rows = [row(name, each, plain) for name, each in found.items()]
    report.show(f"cache · by meaning · {arguments.entries} entries · one core", rows, arguments.json)


def _measure(
    models: dict[str, object], server: RedisServer, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    plain = _target(models, "none", server)
    with running(plain):
        found["no cache"] = times_s(plain, _misses(), arguments.requests)
    cached = _target(models, "semantic", server)
    with running(cached):
        times_s(cached, iter([ASKED] * 300), 1)
        time.sleep(1)  # it is written to Redis in the background
    _fill(server, arguments.entries)
    with running(cached) as pid:
        assert pid is not None
        _wait_until_loaded(pid)
        found["exact hit"] = times_s(cached, itertools.repeat(ASKED), arguments.requests)
        found["semantic hit"] = times_s(cached, itertools.repeat(PARAPHRASE), arguments.requests)
        found["miss"] = times_s(cached, _misses(), arguments.requests)
    return found


def _target(models: dict[str, object], mode: str, server: RedisServer) -> Target:
    memory = {"max_bytes": MEMORY_BYTES, "max_tenant_share": 1.0}
    sections: dict[str, object] = {
        "cache": {"mode": mode, "verified_share": 0.0, "memory": memory, "redis": {"prefix": PREFIX}}
    }
    found = ours(mode, models, MODEL, prefix=on_core(0), sections=sections)
    found.environment["PENSTOCK_REDIS_URL"] = server.url
    return found


def _misses() -> Iterator[str]:
    for number in itertools.count():
        yield f"What did the {number}th visitor say about topic {number * 7919 % 10_007}?"


def _fill(server: RedisServer, count: int) -> None:
    """Copy the one entry that is there, with other questions and vectors in the neighbourhood of topics."""
    client = redis.Redis.from_url(server.url)
    (name,) = client.keys(f"{PREFIX}:*entry:*")
    stem = name[:-32]
    entry = msgspec.msgpack.decode(client.hget(name, "entry"), type=Entry)
    draw = np.random.default_rng(1)
    topics = draw.standard_normal((max(1, count // 20), 384), np.float32)
    topics /= np.linalg.norm(topics, axis=1, keepdims=True)
    for start in range(0, count, 1000):
        commands = client.pipeline(transaction=False)
        for number in range(start, min(start + 1000, count)):
            entry.text = f"Question {number} about topic {number % len(topics)}"
            entry.key = hashlib.sha256(entry.partition + normalised(entry.text).encode()).digest()
            vector = topics[number % len(topics)] + 0.03 * draw.standard_normal(384, np.float32)
            vector = (vector / np.linalg.norm(vector)).astype(float16)
            fields = {"entry": msgspec.msgpack.encode(entry), "vector": vector.tobytes()}
            commands.hset(stem + entry.key, mapping=fields)
        commands.execute()
    client.close()


def _wait_until_loaded(pid: int) -> None:
    """Until the server is idle: it has read all entries and built its index."""
    before_s, until_s = 0.0, time.monotonic() + 300
    while time.monotonic() < until_s:
        time.sleep(2)
        now_s = cpu_time_s(pid)
        if now_s - before_s < 0.2:
            return
        before_s = now_s

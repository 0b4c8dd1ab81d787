"""Look-ups in the vector index of one large partition: time, recall and memory, against brute force."""

from __future__ import annotations

import argparse
import hashlib
import time

import numpy as np
import psutil
from numpy import float16, float32
from numpy.typing import NDArray

from cache.vector_index import VectorIndex
from tests.bench import load, report

DIMENSIONS = 384
PARTITION = b"p"
NOISE = 0.03
"""Length of each component's noise around a topic: neighbours have cosines from 0.6 to 0.8, as questions on
one topic do; a question asked again in other words is nearer."""
PARAPHRASE_NOISE = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench cache_index`."""
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000, 20_000, 100_000, 1_000_000])
    parser.add_argument("--questions", type=int, default=300)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print one row per size."""
    rows = [_row(size, arguments.questions) for size in arguments.entries]
    report.show("cache · index of one partition · 384 dimensions · one core", rows, arguments.json)


def _row(size: int, num_questions: int) -> report.Row:
    draw = np.random.default_rng(1)
    topics = _unit(draw.standard_normal((max(1, size // 20), DIMENSIONS), float32))
    known = np.empty((size, DIMENSIONS), float16)
    index = VectorIndex()
    process = psutil.Process()
    before_bytes, add_s = process.memory_info().rss, []
    for number in range(size):
        known[number] = _near(topics[draw.integers(len(topics))], NOISE, draw)
        started_s = time.perf_counter()
        index.add(PARTITION, _key(number), known[number])
        add_s.append(time.perf_counter() - started_s)
    index.wait_until_built()
    used_bytes = process.memory_info().rss - before_bytes - known.nbytes
    asked = [
        _near(known[draw.integers(size)].astype(float32), PARAPHRASE_NOISE, draw)
        for _ in range(num_questions)
    ]
    times_s, found = [], 0
    for vector in asked:
        started_s = time.perf_counter()
        neighbours = index.search(PARTITION, vector, 5)
        times_s.append(time.perf_counter() - started_s)
        best = _best(known, vector)
        found += len(best & {int.from_bytes(each.key[-4:], "little") for each in neighbours})
    return {
        "entries": size,
        "p50 ms": load.percentile(times_s, 0.5) * 1e3,
        "p99 ms": load.percentile(times_s, 0.99) * 1e3,
        "recall@5": found / (5 * num_questions),
        "add p50 ms": load.percentile(add_s, 0.5) * 1e3,
        "add p99.9 ms": load.percentile(add_s, 0.999) * 1e3,
        "bytes per entry": round(used_bytes / size),
    }


def _key(number: int) -> bytes:
    """Random as the SHA-256 of a question is, with the number at its end."""
    suffix = number.to_bytes(4, "little")
    return hashlib.sha256(suffix).digest()[:28] + suffix


def _best(known: NDArray[float16], vector: NDArray[float32]) -> set[int]:
    """The five nearest, by brute force in slices."""
    cosines = np.concatenate(
        [known[start : start + 50_000].astype(float32) @ vector for start in range(0, len(known), 50_000)]
    )
    return set(np.argpartition(-cosines, 4)[:5].tolist())


def _near(vector: NDArray[float32], noise: float, draw: np.random.Generator) -> NDArray[float32]:
    return _unit(vector + noise * draw.standard_normal(DIMENSIONS, float32))


def _unit(vectors: NDArray[float32]) -> NDArray[float32]:
    found: NDArray[float32] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return found

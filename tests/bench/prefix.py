"""The gain of the prefix tree when prompts share a prefix, and its cost when they do not."""

from __future__ import annotations

import argparse
import asyncio
import statistics
from pathlib import Path

from tests.bench import load, report
from tests.bench.checkpoints import ensure_checkpoint
from tests.bench.targets import Target, our_engine, running

REQUESTS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench prefix`."""
    parser.add_argument("--checkpoint", default="tiny", help="tiny, q06 or a folder")
    parser.add_argument("--words", type=int, default=1000, help="length of the shared prefix")
    parser.add_argument("--rounds", type=int, default=5)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    checkpoint = ensure_checkpoint(arguments.checkpoint, Path(arguments.dir))
    cached, plain = (
        our_engine("cache on", checkpoint),
        our_engine("cache off", checkpoint, prefix_cache=False),
    )
    with running(cached), running(plain):
        rows = asyncio.run(_shared(cached, arguments)) + asyncio.run(_disjoint(cached, plain, arguments))
    title = f"prefix · {arguments.checkpoint} · {REQUESTS} requests, {arguments.words} words, medians"
    report.show(f"{title} of {arguments.rounds}", rows, arguments.json)


async def _shared(target: Target, arguments: argparse.Namespace) -> list[report.Row]:
    """Time to first token of sequential requests: new prefixes, then one that is in the tree."""
    cold, warm = [], []
    for round_ in range(arguments.rounds):
        strangers = [
            load.prompts(1, 8, 10_000 * (round_ + 1) + i, arguments.words)[0] for i in range(REQUESTS)
        ]
        level = await load.run_level(target, 1, strangers, 1)
        cold.append(statistics.median(sample.ttft_s for sample in level.samples))
        primer, *family = load.prompts(REQUESTS + 1, 8, 777 + round_, arguments.words)
        await load.run_level(target, 1, [primer], 1)
        level = await load.run_level(target, 1, family, 1)
        warm.append(statistics.median(sample.ttft_s for sample in level.samples))
    cold_s, warm_s = statistics.median(cold), statistics.median(warm)
    return [
        {"case": "prefix unknown", "ttft p50 ms": cold_s * 1e3},
        {"case": "prefix shared", "ttft p50 ms": warm_s * 1e3, "ratio": cold_s / warm_s},
    ]


async def _disjoint(cached: Target, plain: Target, arguments: argparse.Namespace) -> list[report.Row]:
    """Wall time of work without any prefix hit, with and without the tree, interleaved."""
    walls: dict[str, list[float]] = {cached.name: [], plain.name: []}
    for round_ in range(2 * arguments.rounds):
        for target in (cached, plain) if round_ % 2 else (plain, cached):
            work = load.prompts(REQUESTS, arguments.words // 4, 500_000 + round_)
            walls[target.name].append((await load.run_level(target, 8, work, 32)).wall_s)
    with_s, without_s = statistics.median(walls[cached.name]), statistics.median(walls[plain.name])
    return [
        {"case": "no hits, cache off", "wall ms": without_s * 1e3},
        {"case": "no hits, cache on", "wall ms": with_s * 1e3, "ratio": with_s / without_s},
    ]

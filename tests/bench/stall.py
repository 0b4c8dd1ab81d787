"""Do running streams stall while a long prompt prefills? Their inter-token p99, without and with it."""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import load, report
from tests.bench.checkpoints import ensure_checkpoint
from tests.bench.targets import Target, our_engine, running

STREAMS = 4
SETTLE_CHUNKS = 32
IDLE_TOKENS = 400
TOKEN_IDS = (300, 8000)  # of the long prompt: no special tokens


@dataclass
class Gaps:
    """Times between two pieces of a stream, seconds, over all rounds."""

    idle: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    prefill_s: list[float] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench stall`."""
    parser.add_argument("--checkpoint", default="tiny", help="tiny, q06 or a folder")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument(
        "--max-tokens", type=int, default=1500, help="per running stream: must outlast the prefill"
    )
    parser.add_argument("--rounds", type=int, default=3)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    checkpoint = ensure_checkpoint(arguments.checkpoint, Path(arguments.dir))
    gaps = Gaps()
    target = our_engine("ours", checkpoint)
    with running(target):
        for round_ in range(arguments.rounds):
            asyncio.run(_round(target, arguments, round_, gaps))
    idle_s, busy_s = load.percentile(gaps.idle, 0.99), load.percentile(gaps.busy, 0.99)
    rows: list[report.Row] = [
        {
            "case": "idle",
            "gaps": len(gaps.idle),
            "p50 ms": load.percentile(gaps.idle, 0.5) * 1e3,
            "p99 ms": idle_s * 1e3,
        },
        {
            **{
                "case": "during prefill",
                "gaps": len(gaps.busy),
                "p50 ms": load.percentile(gaps.busy, 0.5) * 1e3,
            },
            **{"p99 ms": busy_s * 1e3, "p99 ratio": busy_s / idle_s},
            "prefill s": load.percentile(gaps.prefill_s, 0.5),
        },
    ]
    title = (
        f"stall · {arguments.checkpoint} · {STREAMS} streams, a prompt of {arguments.prompt_tokens} tokens"
    )
    report.show(f"{title}, {arguments.rounds} rounds", rows, arguments.json)


async def _round(target: Target, arguments: argparse.Namespace, seed: int, gaps: Gaps) -> None:
    """Four streams alone, then four with a long prompt arriving in the middle."""
    work = load.prompts(2 * STREAMS, 32, seed)
    async with load.open_session(target) as session:
        alone = await asyncio.gather(*(load.stream(session, target, p, IDLE_TOKENS) for p in work[:STREAMS]))
        for sample in alone:
            gaps.idle += sample.gaps_s[SETTLE_CHUNKS:]

        settled = asyncio.Semaphore(0)

        def count(chunks: int) -> None:
            if chunks == SETTLE_CHUNKS:
                settled.release()

        tasks = [
            asyncio.create_task(load.stream(session, target, p, arguments.max_tokens, count))
            for p in work[STREAMS:]
        ]
        for _ in tasks:
            await settled.acquire()
        draw = random.Random(seed)
        prompt = [draw.randrange(*TOKEN_IDS) for _ in range(arguments.prompt_tokens)]
        long = await load.stream(session, target, prompt, 1)
        disturbed = await asyncio.gather(*tasks)
    end_s = long.sent_s + long.ttft_s
    assert all(sample.chunks_s[-1] > end_s for sample in disturbed), (
        "the streams ended first: raise --max-tokens"
    )
    gaps.prefill_s.append(long.ttft_s)
    for sample in disturbed:
        later = zip(sample.chunks_s[1:], sample.gaps_s, strict=True)
        gaps.busy += [gap_s for ended_s, gap_s in later if long.sent_s < ended_s <= end_s]

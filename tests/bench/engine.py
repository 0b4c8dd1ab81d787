"""Engine against engine on one checkpoint, in interleaved rounds: tokens/s, TTFT and inter-token time."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.bench import load, report
from tests.bench.checkpoints import ensure_checkpoint
from tests.bench.targets import Target, free_port, our_engine, running

Results = dict[tuple[str, int], list[load.Level]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench engine`."""
    parser.add_argument("--checkpoints", default="tiny,q06", help="tiny, q06 or folders, comma-separated")
    parser.add_argument("--vllm", metavar="PATH", help="vllm executable to compare with")
    parser.add_argument("--transformers", action="store_true", help="compare with transformers generate")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--prompt-words", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    for name in arguments.checkpoints.split(","):
        checkpoint = ensure_checkpoint(name, Path(arguments.dir))
        streams = [int(text) for text in arguments.streams.split(",")]
        targets = [our_engine("ours", checkpoint)]
        if arguments.vllm:
            targets.append(_vllm(arguments.vllm, checkpoint))
        results: Results = defaultdict(list)
        generate: dict[int, list[float]] = defaultdict(list)
        for round_ in range(arguments.rounds):
            for target in targets:
                with running(target):
                    asyncio.run(_measure(target, streams, arguments, round_, results))
            if arguments.transformers:
                for batch, value in _transformers(checkpoint, arguments).items():
                    generate[batch].append(value)
        title = f"engine · {name} · {arguments.prompt_words} words in, {arguments.max_tokens} tokens out"
        report.show(f"{title}, median of {arguments.rounds}", _rows(results, generate), arguments.json)


def _vllm(executable: str, checkpoint: Path) -> Target:
    port = free_port()
    command = (executable, "serve", str(checkpoint), "--port", str(port), "--max-model-len", "4096")
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    url = f"http://127.0.0.1:{port}/v1"
    return Target("vllm", url, str(checkpoint), (*command, "--dtype", "bfloat16"), environment=environment)


async def _measure(
    target: Target, streams: list[int], arguments: argparse.Namespace, round_: int, results: Results
) -> None:
    await load.run_level(target, 4, load.prompts(8, arguments.prompt_words, seed=1), 16)  # warm-up
    for streams_ in streams:
        # Enough requests that a level lasts long enough even when a request takes 50 ms.
        work = load.prompts(max(6, 2 * streams_), arguments.prompt_words, seed=1000 * round_ + streams_)
        results[target.name, streams_].append(
            await load.run_level(target, streams_, work, arguments.max_tokens)
        )


def _transformers(checkpoint: Path, arguments: argparse.Namespace) -> dict[int, float]:
    """tokens/s of `generate` by batch size, in a separate process with its own memory."""
    command = [sys.executable, "-m", "tests.bench.transformers_generate", str(checkpoint)]
    sizes = [str(arguments.prompt_words), str(arguments.max_tokens)]
    out = subprocess.run([*command, *sizes], capture_output=True, text=True, check=True).stdout
    return {int(batch): value for batch, value in json.loads(out.splitlines()[-1]).items()}


def _rows(results: Results, generate: dict[int, list[float]]) -> list[report.Row]:
    speeds = {
        key: statistics.median(level.tokens_per_s for level in levels) for key, levels in results.items()
    }
    ttfts = {key: _median_ttft(levels) for key, levels in results.items()}
    rows: list[report.Row] = []
    for (name, streams), levels in sorted(results.items(), key=lambda item: (item[0][1], item[0][0])):
        samples = [sample for level in levels for sample in level.samples]
        rows.append(
            {
                "engine": name,
                "streams": streams,
                "tok/s": speeds[name, streams],
                "ttft p50 ms": ttfts[name, streams] * 1e3,
                "itl p50 ms": load.percentile([s.itl_s for s in samples], 0.5) * 1e3,
                "itl p99 ms": load.percentile([s.itl_s for s in samples], 0.99) * 1e3,
                "ours/this tok/s": speeds["ours", streams] / speeds[name, streams],
                "ours/this ttft": ttfts["ours", streams] / ttfts[name, streams],
            }
        )
    for batch, values in generate.items():
        speed = statistics.median(values)
        ratio = speeds["ours", batch] / speed if ("ours", batch) in speeds else None
        rows.append({"engine": "transformers", "streams": batch, "tok/s": speed, "ours/this tok/s": ratio})
    return rows


def _median_ttft(levels: list[load.Level]) -> float:
    return statistics.median(load.percentile([s.ttft_s for s in level.samples], 0.5) for level in levels)

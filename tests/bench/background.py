"""Online requests beside a batch: their time to first token, with a batch's lines running and without."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

import aiohttp

from tests.bench import load, report
from tests.bench.load import Sample
from tests.bench.targets import Target, ours, running

MODEL = "pico-small"
MODELS: dict[str, object] = {MODEL: {"engine": {"checkpoint": f"builtin:{MODEL}"}}}
MAX_TOKENS = 16
PROMPT_WORDS = 40
BATCH_LINES = 20_000
SETTLE_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench background`."""
    parser.add_argument("--rate", type=float, default=4.0, help="online requests per second")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    target = ours("ours", MODELS, MODEL)
    found: dict[str, list[float]] = {"alone": [], "with a batch": []}
    lines_per_s: list[float] = []
    with running(target):
        asyncio.run(_rounds(target, arguments, found, lines_per_s))
    rows: list[report.Row] = []
    for case, ttft_s in found.items():
        p50_s, p95_s = load.percentile(ttft_s, 0.5), load.percentile(ttft_s, 0.95)
        rows.append({"case": case, "requests": len(ttft_s), "p50 ms": p50_s * 1e3, "p95 ms": p95_s * 1e3})
    rows[1]["p95 ratio"] = rows[1]["p95 ms"] / rows[0]["p95 ms"]
    rows[1]["lines/s"] = load.percentile(lines_per_s, 0.5)
    title = f"background · {MODEL} · {arguments.rate:g} online requests/s, {arguments.rounds} rounds"
    report.show(title, rows, arguments.json)


async def _rounds(
    target: Target, arguments: argparse.Namespace, found: dict[str, list[float]], lines_per_s: list[float]
) -> None:
    async with load.open_session(target) as session:
        await _online(session, target, arguments.rate, SETTLE_S, seed=0)
        for round_ in range(arguments.rounds):
            for case, ttft_s in found.items():
                batch = await _batch(session, target) if case != "alone" else {}
                await asyncio.sleep(SETTLE_S)
                before = await _completed(session, target, batch)
                samples = await _online(session, target, arguments.rate, arguments.seconds, round_ + 1)
                ttft_s += [sample.ttft_s for sample in samples]
                if batch:
                    after = await _completed(session, target, batch)
                    lines_per_s.append((after - before) / arguments.seconds)
                    await _post(session, f"{target.url}/batches/{batch['id']}/cancel")
                    await asyncio.sleep(SETTLE_S)


async def _online(
    session: aiohttp.ClientSession, target: Target, rate: float, seconds: float, seed: int
) -> list[Sample]:
    """Requests at random times, whether earlier ones have been answered or not."""
    draw = random.Random(seed)
    tasks: list[asyncio.Task[Sample]] = []
    prompts = iter(load.prompts(int(rate * seconds * 3) + 50, PROMPT_WORDS, seed))
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        tasks.append(asyncio.create_task(load.stream(session, target, next(prompts), MAX_TOKENS)))
        await asyncio.sleep(draw.expovariate(rate))
    return await asyncio.gather(*tasks)


async def _batch(session: aiohttp.ClientSession, target: Target) -> dict[str, Any]:
    """A batch that outlasts a measurement."""
    bodies = [
        {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_completion_tokens": 64}
        for prompt in load.prompts(BATCH_LINES, PROMPT_WORDS, seed=int(time.time()))
    ]
    url = "/v1/chat/completions"
    lines = [
        {"custom_id": str(number), "method": "POST", "url": url, "body": body}
        for number, body in enumerate(bodies)
    ]
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", "\n".join(map(json.dumps, lines)), filename="lines.jsonl")
    file = await _post(session, f"{target.url}/files", data=form)
    body = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
    return await _post(session, f"{target.url}/batches", json=body)


async def _completed(session: aiohttp.ClientSession, target: Target, batch: dict[str, Any]) -> int:
    if not batch:
        return 0
    async with session.get(f"{target.url}/batches/{batch['id']}") as response:
        return int((await response.json())["request_counts"]["completed"])


async def _post(session: aiohttp.ClientSession, url: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401
    async with session.post(url, **body) as response:
        assert response.status == 200, f"{url}: {response.status} {(await response.text())[:300]}"
        found: dict[str, Any] = await response.json()
        return found

"""What replicas that know their caches gain over round robin: prefix hits and first tokens of chats.

Also what their set costs one replica, and how long streams pause when a replica is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import yaml

from backend.server.endpoints import RemoteEndpoint
from backend.server.engine_client import EngineClient
from backend.types import PAGE_TOKENS, Request, SamplingParams
from gateway.providers.engine.replicas import Prompt, Replicas
from tests.bench import load, report
from tests.bench.targets import START_TIMEOUT_S, STOP_TIMEOUT_S, Target, ours, running
from tests.e2e.server import command_line, descendants, free_port

SYSTEM_TOKENS, TURN_TOKENS, TURNS = 600, 100, 4
ANSWER_TOKENS = 8
TOKEN_IDS = (300, 1_500)  # no special tokens
CHATS_PER_SYSTEM = 3
KILLED_STREAMS, KILLED_TOKENS = 50, 300
DIRECT_REQUESTS, DIRECT_TOKENS, DIRECT_CLIENTS = 160, 16, 8
PAGES_SHARE = 0.5
"""The pages of each replica, over those of all conversations at their end."""


@dataclass
class Found:
    """All requests of one way to place them."""

    samples: list[load.Sample] = field(default_factory=list)
    prompt_tokens: int = 0

    def row(self, case: str) -> report.Row:
        first = [sample.ttft_s for sample in self.samples]
        return {
            "case": case,
            "hits %": 100 * sum(sample.cached_tokens for sample in self.samples) / self.prompt_tokens,
            "ttft p50 ms": load.percentile(first, 0.5) * 1e3,
            "ttft p90 ms": load.percentile(first, 0.9) * 1e3,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench replicas`."""
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    count = arguments.replicas
    own = SYSTEM_TOKENS // CHATS_PER_SYSTEM + TURNS * TURN_TOKENS
    pages = int(PAGES_SHARE * arguments.conversations * own / PAGE_TOKENS)
    options: dict[str, object] = {"checkpoint": "builtin:pico-small", "num_pages": pages, "num_threads": 1}
    one = ours("replicas", {"m": {"engine": {**options, "replicas": count}}}, "m")
    several = ours("round robin", {f"m{number}": {"engine": options} for number in range(count)}, "m0")
    turns = [replace(several, model=f"m{number}") for number in range(count)]
    by_quote, by_turn = Found(), Found()
    with ExitStack() as servers:
        for target in (one, several):
            servers.enter_context(running(target))
        for round_ in range(arguments.rounds):
            for found, targets in ((by_quote, [one]), (by_turn, turns)):
                asyncio.run(_talk(found, targets, arguments, seed=round_))
    rows = [by_turn.row("round robin"), by_quote.row("by quote")]
    title = f"replicas · {count} of pico-small, {pages} pages each, {arguments.conversations} conversations"
    report.show(f"{title}, {arguments.clients} clients", rows, arguments.json)
    report.show("one replica through the set", [asyncio.run(_set_cost(arguments.rounds))], arguments.json)
    killed = ours("killed", {"m": {"engine": {**options, "num_pages": 4_000, "replicas": count}}}, "m")
    with running(killed) as pid:
        assert pid is not None
        row = asyncio.run(_kill_one(killed, pid))
    report.show(f"kill -9 of one of {count} replicas", [row], arguments.json)


async def _kill_one(target: Target, server_pid: int) -> report.Row:
    """Kill an engine while streams run; how long each paused at most from then on."""
    begun = asyncio.Semaphore(0)
    async with load.open_session(target) as session:
        prompts = [[*range(300 + number, 340 + number)] for number in range(KILLED_STREAMS)]

        def on_chunk(count: int) -> None:
            if count == 5:
                begun.release()

        tasks = [
            asyncio.create_task(load.stream(session, target, prompt, KILLED_TOKENS, on_chunk))
            for prompt in prompts
        ]
        for _ in tasks:
            await begun.acquire()
        engines = [p for p in descendants(server_pid) if b"backend.server.engine_process" in command_line(p)]
        killed_s = time.perf_counter()
        os.kill(engines[0], signal.SIGKILL)
        samples = await asyncio.gather(*tasks)
    pauses = []
    for sample in samples:
        times = [*(each for each in sample.chunks_s if each >= killed_s)]
        pauses.append(max((b - a for a, b in zip([killed_s, *times], times, strict=False)), default=0.0))
    return {
        "complete": sum(sample.tokens == KILLED_TOKENS for sample in samples),
        "streams": len(samples),
        "pause p50 ms": load.percentile(pauses, 0.5) * 1e3,
        "pause p99 ms": load.percentile(pauses, 0.99) * 1e3,
    }


async def _set_cost(rounds: int) -> report.Row:
    """Requests per second of one engine, asked by its client and through a set of it alone, in turn."""
    folder, port = Path(tempfile.mkdtemp(prefix="penstock-bench-")), free_port()
    engine = {"checkpoint": "builtin:pico-small", "num_threads": 1, "kv_cache_bytes": 1 << 27}
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": {"m": {"engine": engine}}}))
    address = f"tcp://127.0.0.1:{port}"
    serve = ["-m", "gateway.cli", "engine", "--policies", str(folder), "--listen", address]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, *serve], stdin=nothing, stdout=nothing, stderr=nothing)
    client = EngineClient(RemoteEndpoint(address, "127.0.0.1", port))
    replicas = Replicas([client])
    found: dict[str, list[float]] = {"direct": [], "set": []}
    try:
        await client.start()
        await client.wait_ready(START_TIMEOUT_S)
        await _requests_per_s(lambda prompt: client)
        for _ in range(2 * rounds):
            found["direct"].append(await _requests_per_s(lambda prompt: client))
            found["set"].append(await _requests_per_s(lambda ids: replicas.choose(Prompt(ids))))
    finally:
        await client.close()
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
    direct, through = median(found["direct"]), median(found["set"])
    return {"direct 1/s": direct, "through the set 1/s": through, "ratio": through / direct}


async def _requests_per_s(choose: Callable[[list[int]], EngineClient]) -> float:
    gate, began_s = asyncio.Semaphore(DIRECT_CLIENTS), time.perf_counter()
    params = SamplingParams(max_tokens=DIRECT_TOKENS, temperature=0.0, ignore_eos=True)

    async def one(number: int) -> None:
        async with gate:
            prompt = [*range(300 + number, 364 + number)]
            (stream,) = choose(prompt).submit(
                [Request(request_id=str(number), prompt_token_ids=prompt, params=params)]
            )
            async for _ in stream:
                pass

    await asyncio.gather(*map(one, range(DIRECT_REQUESTS)))
    return DIRECT_REQUESTS / (time.perf_counter() - began_s)


async def _talk(found: Found, targets: list[Target], arguments: argparse.Namespace, seed: int) -> None:
    gate = asyncio.Semaphore(arguments.clients)
    work = _prompts(arguments.conversations, seed)
    async with load.open_session(targets[0]) as session:

        async def one(number: int, prompt: list[int]) -> None:
            async with gate:
                target = targets[number % len(targets)]
                found.samples.append(await load.stream(session, target, prompt, ANSWER_TOKENS))
                found.prompt_tokens += len(prompt)

        await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(work)))


def _prompts(conversations: int, seed: int) -> Iterator[list[int]]:
    """Each turn of all conversations in another order, then the next turn."""
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(*TOKEN_IDS) for _ in range(count)]

    systems = [tokens(SYSTEM_TOKENS) for _ in range(conversations // CHATS_PER_SYSTEM)]
    texts = [system[:] for system in systems for _ in range(CHATS_PER_SYSTEM)]
    for _ in range(TURNS):
        draw.shuffle(texts)
        for text in texts:
            text += tokens(TURN_TOKENS)
            yield text[:]

"""What replicas that know their caches gain over round robin: prefix hits and first tokens of chats."""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from backend.types import PAGE_TOKENS
from tests.bench import load, report
from tests.bench.targets import Target, ours, running

SYSTEM_TOKENS, TURN_TOKENS, TURNS = 600, 100, 4
ANSWER_TOKENS = 8
TOKEN_IDS = (300, 1_500)  # no special tokens
CHATS_PER_SYSTEM = 3
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

"""A load generator for OpenAI-compatible servers: streams completions and records when each piece arrives."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from tests.bench.targets import Target

WORDS = (
    "import def class return for while if else try except with as from lambda self None True False print "
    "range len list dict set tuple str int float open read write path name value key item index data"
).split()

Prompt = str | list[int]


@dataclass(frozen=True)
class Sample:
    """One streamed request; times are time.perf_counter()."""

    sent_s: float
    chunks_s: tuple[float, ...]
    tokens: int
    cached_tokens: int = 0  # of the prompt

    @property
    def ttft_s(self) -> float:
        """From sending to the first piece, in seconds."""
        return self.chunks_s[0] - self.sent_s

    @property
    def itl_s(self) -> float:
        """Mean time between tokens."""
        return (self.chunks_s[-1] - self.chunks_s[0]) / max(self.tokens - 1, 1)

    @property
    def gaps_s(self) -> list[float]:
        """Times between consecutive pieces."""
        return [later - earlier for earlier, later in zip(self.chunks_s, self.chunks_s[1:], strict=False)]


@dataclass(frozen=True)
class Level:
    """Many requests at one concurrency."""

    samples: list[Sample]
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens over wall time, prefill included."""
        return sum(sample.tokens for sample in self.samples) / self.wall_s


def prompts(count: int, words: int, seed: int, shared_words: int = 0) -> list[str]:
    """Random prompts; equal arguments give equal prompts."""
    draw = random.Random(seed)
    head = " ".join(draw.choice(WORDS) for _ in range(shared_words))
    return [f"{head} {' '.join(draw.choice(WORDS) for _ in range(words))}".strip() for _ in range(count)]


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def open_session(target: Target) -> aiohttp.ClientSession:
    """A session without limits on connections and time."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"authorization": f"Bearer {target.key}"},
    )


async def stream(
    session: aiohttp.ClientSession,
    target: Target,
    prompt: Prompt,
    max_tokens: int,
    on_chunk: Callable[[int], None] = lambda chunks: None,
) -> Sample:
    """One greedy completion of exactly `max_tokens` tokens; `on_chunk` gets the number of pieces so far."""
    body = {
        **{"model": target.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0},
        **{"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}},
    }
    sent_s = time.perf_counter()
    chunks_s: list[float] = []
    tokens = cached_tokens = 0
    async with session.post(target.url + "/completions", json=body) as response:
        assert response.status == 200, f"{target.name}: {response.status} {(await response.text())[:300]}"
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            now_s = time.perf_counter()
            event = json.loads(line[6:])
            assert "error" not in event, f"{target.name}: {event}"
            if event.get("choices"):
                chunks_s.append(now_s)
                on_chunk(len(chunks_s))
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
                details = event["usage"].get("prompt_tokens_details") or {}
                cached_tokens = details.get("cached_tokens") or 0
    return Sample(sent_s, tuple(chunks_s), tokens, cached_tokens)


async def run_level(target: Target, concurrency: int, work: Sequence[Prompt], max_tokens: int) -> Level:
    """Run all of `work`, `concurrency` at a time."""
    gate = asyncio.Semaphore(concurrency)
    async with open_session(target) as session:

        async def one(prompt: Prompt) -> Sample:
            async with gate:
                return await stream(session, target, prompt, max_tokens)

        started_s = time.perf_counter()
        samples = await asyncio.gather(*(one(prompt) for prompt in work))
        return Level(samples, time.perf_counter() - started_s)

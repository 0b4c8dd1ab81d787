"""What the tests of server and client ask of a worker, and what it must answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backend.server.engine_client import EngineClient, RequestStream
from backend.server.engine_messages import EngineStats
from backend.types import Request, SamplingParams, StepOutput
from tests.backend.engine.fake_runner import next_token

TIMEOUT_S = 20


def ask(request_id: str, prompt: list[int], max_tokens: int = 8) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=request_id, prompt_token_ids=prompt, params=params)


async def collect(stream: RequestStream) -> list[StepOutput]:
    async with asyncio.timeout(TIMEOUT_S):
        return [output async for output in stream]


async def text(stream: RequestStream) -> list[int]:
    return [token for output in await collect(stream) for token in output.token_ids]


async def until(client: EngineClient, holds: Callable[[EngineStats], bool]) -> EngineStats:
    """The first heartbeat's stats for which `holds`."""
    async with asyncio.timeout(TIMEOUT_S):
        while not holds(client.stats):
            await client.wait_message()
    return client.stats


async def until_ended(client: EngineClient, **requests: int) -> None:
    """Wait until this many requests have ended for each reason, and check that all pages are free."""
    stats = await until(client, lambda stats: stats.requests_total == requests)
    assert stats.num_running == stats.num_waiting == 0
    assert stats.free_pages == stats.total_pages


def expected_ignoring_eos(prompt: list[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]

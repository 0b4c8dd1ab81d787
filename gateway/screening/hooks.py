"""Checks of the operator's own, asked over HTTP: a small protocol of ours, or OpenAI's moderation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec

from guardrails.screen.hooks import Direction, HookFailed, HookVerdict, identifier
from policies.guardrails import HookRules, Segment

MAX_ANSWER_BYTES = 1 << 20
MAX_INPUTS = 32
"""Inputs of one question in the form of moderations: services refuse long conversations as a whole."""


class _Penstock(msgspec.Struct):
    flagged: bool
    reason: str = ""


class _Result(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool | None] = {}


class _Moderations(msgspec.Struct):
    results: list[_Result]


class HttpHook:
    """One hook of a profile. Connections are kept; open one per version of the policies, and close it."""

    def __init__(self, rules: HookRules, api_key: str = "") -> None:
        self.rules = rules
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx2.AsyncClient(headers=headers, timeout=None, follow_redirects=False)

    async def start(self) -> None:
        """Do nothing: connections are made when they are needed."""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def applies(self, direction: Direction) -> bool:
        """Whether the policy asks this hook about requests, or answers."""
        return self.rules.requests if direction == "request" else self.rules.answers

    async def check(self, direction: Direction, texts: Sequence[tuple[Segment, str]]) -> HookVerdict:
        """Ask about texts, until some are flagged. Raises HookFailed."""
        size = len(texts) if self.rules.format == "penstock" else MAX_INPUTS
        verdict = HookVerdict(flagged=False)
        try:
            async with asyncio.timeout(self.rules.timeout_ms / 1000):
                for start in range(0, len(texts), size):
                    verdict = await self._ask(direction, texts[start : start + size])
                    if verdict.flagged:
                        break
        except (httpx2.HTTPError, TimeoutError) as error:
            raise HookFailed(type(error).__name__) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise HookFailed("the answer is not what the protocol says") from None
        return verdict

    async def _ask(self, direction: Direction, texts: Sequence[tuple[Segment, str]]) -> HookVerdict:
        question = self._question(direction, texts)
        async with self._client.stream("POST", self.rules.url, json=question) as found:
            if found.status_code != 200:
                raise HookFailed(f"status {found.status_code}")
            body = bytearray()
            async for piece in found.aiter_bytes():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise HookFailed("the answer is too long")
        return self._verdict(bytes(body), len(texts))

    def _question(self, direction: Direction, texts: Sequence[tuple[Segment, str]]) -> dict[str, Any]:
        if self.rules.format == "penstock":
            sent = [{"segment": segment, "text": text} for segment, text in texts]
            return {"direction": direction, "texts": sent}
        question: dict[str, Any] = {"input": [text for _, text in texts]}
        return question if self.rules.model is None else question | {"model": self.rules.model}

    def _verdict(self, body: bytes, num_texts: int) -> HookVerdict:
        if self.rules.format == "penstock":
            found = msgspec.json.decode(body, type=_Penstock)
            return HookVerdict(found.flagged, identifier(found.reason))
        results = msgspec.json.decode(body, type=_Moderations).results
        if len(results) != num_texts:
            raise HookFailed(f"{len(results)} results for {num_texts} texts")
        categories = {name for result in results for name, holds in result.categories.items() if holds}
        return HookVerdict(
            any(result.flagged for result in results), identifier("+".join(sorted(categories)))
        )

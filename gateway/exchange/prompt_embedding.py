"""What a text means, computed at most once per request and shared by the stages that ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy import float32
from numpy.typing import NDArray

from backend.encoder.checkpoint import Reading
from backend.encoder.network import unit
from backend.errors import EngineError, RequestError
from backend.server.encoder_client import EncoderClient
from cache.circuit_breaker import CircuitBreaker
from gateway.extras import require
from guardrails.screen.guard import EmbedTexts
from policies.document import EncoderModel

if TYPE_CHECKING:
    from backend.encoder.model import SentenceEncoder

Embed = Callable[[str], Awaitable["NDArray[float32] | None"]]

WAIT_LIMIT_S = 0.5
"""A request goes on without its meaning when the encoder is slower: it is worth a few milliseconds only."""

BREAKER_OPEN_S = 5.0
"""How long an encoder that did not answer is not asked: its process may hang until it is restarted."""


class Meaning:
    """The vector of one text."""

    __slots__ = ("_embed", "_task", "text")

    def __init__(self, text: str, embed: Embed) -> None:
        self.text = text
        self._embed = embed
        self._task: asyncio.Future[NDArray[float32] | None] | None = None

    @classmethod
    def known(cls, text: str, vector: NDArray[float32]) -> Meaning:
        """The embedding of a text whose vector another stage has. Call it inside an event loop."""
        found = cls(text, no_meaning)
        found._task = asyncio.get_running_loop().create_future()
        found._task.set_result(vector)
        return found

    def start(self) -> asyncio.Future[NDArray[float32] | None]:
        """Begin to encode, unless that has begun. The result is as `vector`'s."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._embed(self.text))
        return self._task

    async def vector(self) -> NDArray[float32] | None:
        """(dimensions,) of unit length; None when the encoder does not answer or the text is too long."""
        return await asyncio.shield(self.start())  # others may wait for it too


async def no_meaning(text: str) -> NDArray[float32] | None:
    """Used where the policies have no encoder."""
    return None


def embed_here(section: EncoderModel) -> Embed:
    """The function that runs the encoder in this process, for commands without a gateway.

    Raises SettingsError without the extra `semantic`.
    """
    require(f"the encoder {section.checkpoint!r}", ["semantic"])
    encoder: SentenceEncoder | None = None

    async def embed(text: str) -> NDArray[float32] | None:
        nonlocal encoder
        if encoder is None:
            from backend.encoder.model import SentenceEncoder

            reading = Reading(section.prompt, section.prompt_name, section.pooling)
            encoder = SentenceEncoder.from_checkpoint(section.checkpoint, 1, reading=reading)
        try:
            found: NDArray[float32] = unit(encoder.embed(encoder.tokenize([text])))[0]
            return found
        except RequestError:  # too long
            return None

    return embed


def embed_with(client: EncoderClient) -> Embed:
    """The function that asks an encoder process for one vector, behind a circuit breaker."""
    embed_texts = embed_texts_with(client, WAIT_LIMIT_S)

    async def embed(text: str) -> NDArray[float32] | None:
        found = await embed_texts([text])
        return None if found is None else found[0]

    return embed


def embed_texts_with(client: EncoderClient, wait_limit_s: float | None = None) -> EmbedTexts:
    """The function that asks an encoder process for vectors of length 1, behind a circuit breaker.

    `wait_limit_s`: None for callers that have a limit of their own.
    """
    breaker = CircuitBreaker(BREAKER_OPEN_S)
    answered_s = 0.0  # when it answered last

    async def embed_texts(texts: Sequence[str]) -> NDArray[float32] | None:
        nonlocal answered_s
        if not breaker.allows_call():
            return None
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(wait_limit_s):
                found = await client.embed(list(texts))
        except TimeoutError:
            breaker.record(is_success=False)
            return None
        except asyncio.CancelledError:  # by the caller's limit, or because its client left
            if answered_s < started_s <= time.monotonic() - WAIT_LIMIT_S:  # it has answered nothing meanwhile
                breaker.record(is_success=False)
            raise
        except EngineError:  # such as a text that is too long: the request has not waited
            breaker.record(is_success=True)
            return None
        breaker.record(is_success=True)
        answered_s = time.monotonic()
        return unit(np.stack([np.frombuffer(vector, float32) for vector in found.vectors]))

    return embed_texts

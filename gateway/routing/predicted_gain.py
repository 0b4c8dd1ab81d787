"""The predicted gain of the large model for a request: that of the last turn, or what earlier ones leave."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from numpy import float32
from numpy.typing import NDArray

from backend.encoder.language import language_of
from gateway.exchange.exchange import Exchange
from gateway.exchange.prompt_embedding import Embed, Meaning
from gateway.exchange.turns import user_turns
from gateway.requests.types import ChatRequest
from router.estimate import Estimate, Prediction, asking_part

EARLIER_TURNS = 4
"""Turns of the user before the last whose difficulty is remembered."""

RELEASE = 0.6
"""What is left of an earlier turn's predicted gain with each turn: the choice rises at once, falls slowly."""


async def predict_gain(
    exchange: Exchange, estimate: Estimate, embed: Embed, languages: Collection[str]
) -> Prediction:
    """Familiarity and probability to stay are those of the last turn. `languages`: that the encoder reads."""
    *earlier, last = user_turns(exchange.request) or [""]
    has_tools = isinstance(exchange.request, ChatRequest) and bool(exchange.request.tools)
    shared = partial(_shared, exchange, embed)
    read = _part_to_encode(estimate, last, languages)
    vector = await shared(read) if read else None
    found = estimate.predict(last, vector, has_tools=has_tools)
    gain = found.gain
    for age, text in enumerate(reversed(earlier[-EARLIER_TURNS:]), 1):
        part = _part_to_encode(estimate, text, languages)
        gain = max(gain, RELEASE**age * estimate.predict(text, await embed(part) if part else None).gain)
    return Prediction(gain, found.familiarity, found.stays, lacks_vector=bool(read) and vector is None)


def _part_to_encode(estimate: Estimate, text: str, languages: Collection[str]) -> str:
    """The part that asks; "" where the estimate needs no vector or the encoder cannot read its language."""
    asked = asking_part(text) if estimate.needs_vector else ""
    return asked if asked and language_of(asked) in ("", *languages) else ""


async def _shared(exchange: Exchange, embed: Embed, asked: str) -> NDArray[float32] | None:
    """The vector of the last turn, where all of it asks: other stages read it too."""
    if asked == user_turns(exchange.request)[-1]:
        return await meaning_of(exchange, asked, embed).vector()
    return await embed(asked)


def meaning_of(exchange: Exchange, last_turn: str, embed: Embed) -> Meaning:
    """The embedding of the last turn, which all stages share."""
    if exchange.meaning is None:
        exchange.meaning = Meaning(last_turn, embed)
    return exchange.meaning

"""The predicted gain of the large model for a request: that of the last turn, or what earlier ones leave."""

from __future__ import annotations

from gateway.pipeline.exchange import Exchange
from gateway.pipeline.meaning import Embed, Meaning
from gateway.pipeline.turns import user_turns
from gateway.requests.types import ChatRequest
from router.estimate import Estimate, Prediction

EARLIER_TURNS = 4
"""Turns of the user before the last whose difficulty is remembered."""

RELEASE = 0.6
"""What is left of an earlier turn's predicted gain with each turn: the choice rises at once, falls slowly."""


async def predict_gain(exchange: Exchange, estimate: Estimate, embed: Embed) -> Prediction:
    """The familiarity is that of the last turn."""
    *earlier, last = user_turns(exchange.request) or [""]
    has_tools = isinstance(exchange.request, ChatRequest) and bool(exchange.request.tools)
    vector = None
    if estimate.needs_vector and last:
        vector = await meaning_of(exchange, last, embed).vector()
    found = estimate.predict(last, vector, has_tools=has_tools)
    gain = found.gain
    for age, text in enumerate(reversed(earlier[-EARLIER_TURNS:]), 1):
        vector = await embed(text) if estimate.needs_vector and text else None
        gain = max(gain, RELEASE**age * estimate.predict(text, vector).gain)
    return Prediction(gain, found.familiarity)


def meaning_of(exchange: Exchange, last_turn: str, embed: Embed) -> Meaning:
    """That of the last turn, which all stages share."""
    if exchange.meaning is None:
        exchange.meaning = Meaning(last_turn, embed)
    return exchange.meaning

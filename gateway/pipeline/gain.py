"""The predicted gain of the large model for a request: that of the last turn, or what earlier ones leave."""

from __future__ import annotations

from numpy import float32
from numpy.typing import NDArray

from backend.encoder.language import language_of
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.meaning import Embed, Meaning
from gateway.pipeline.turns import user_turns
from gateway.requests.types import ChatRequest
from router.estimate import Estimate, Prediction, asking_part

ENCODER_LANGUAGES = ("en", "")
"""Those that MiniLM reads; "": too short to tell."""

EARLIER_TURNS = 4
"""Turns of the user before the last whose difficulty is remembered."""

RELEASE = 0.6
"""What is left of an earlier turn's predicted gain with each turn: the choice rises at once, falls slowly."""


async def predict_gain(exchange: Exchange, estimate: Estimate, embed: Embed) -> Prediction:
    """Familiarity and probability to stay are those of the last turn."""
    *earlier, last = user_turns(exchange.request) or [""]
    has_tools = isinstance(exchange.request, ChatRequest) and bool(exchange.request.tools)
    found = estimate.predict(last, await _vector(estimate, last, embed, exchange), has_tools=has_tools)
    gain = found.gain
    for age, text in enumerate(reversed(earlier[-EARLIER_TURNS:]), 1):
        gain = max(gain, RELEASE**age * estimate.predict(text, await _vector(estimate, text, embed)).gain)
    return Prediction(gain, found.familiarity, found.stays)


async def _vector(
    estimate: Estimate, text: str, embed: Embed, exchange: Exchange | None = None
) -> NDArray[float32] | None:
    """Of the part that asks; None where the estimate needs none or the encoder cannot read its language.

    `exchange`: where the text is its last turn, whose vector all stages share.
    """
    asked = asking_part(text) if estimate.needs_vector else ""
    if not asked or language_of(asked) not in ENCODER_LANGUAGES:
        return None
    if exchange is not None and asked == text:
        return await meaning_of(exchange, text, embed).vector()
    return await embed(asked)


def meaning_of(exchange: Exchange, last_turn: str, embed: Embed) -> Meaning:
    """That of the last turn, which all stages share."""
    if exchange.meaning is None:
        exchange.meaning = Meaning(last_turn, embed)
    return exchange.meaning

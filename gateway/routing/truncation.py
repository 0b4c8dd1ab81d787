"""`truncation: auto`: a chat that a model's context has no room for goes on without its oldest turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from backend.errors import EngineError
from gateway.answer import Answer
from gateway.errors import ApiError, to_api_error
from gateway.exchange.exchange import Exchange
from gateway.requests.parse import typed
from gateway.routing.fallback import CONTEXT_CODES

INSTRUCTIONS = ("system", "developer")


async def truncating(exchange: Exchange, ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask, and again without the oldest turn, the oldest two, four and so on, while the context is full.

    Raises what `ask` raises otherwise, or when only the last turn is left.
    """
    num_turns = 1
    while True:
        try:
            return await ask()
        except (ApiError, EngineError) as failure:
            if to_api_error(failure).code not in CONTEXT_CODES:
                raise
            messages = without_turns(exchange.body["messages"], num_turns)
            if messages is None:
                raise
        exchange.body = {**exchange.body, "messages": messages}
        exchange.request = typed(exchange.body, exchange.asked.endpoint.request)
        num_turns *= 2


def without_turns(messages: list[dict[str, Any]], num_turns: int) -> list[dict[str, Any]] | None:
    """Without the oldest turns but the last one, each a user's message and all up to the next.

    Instructions stay. None when there is but one turn.
    """
    turns = [number for number, message in enumerate(messages) if message.get("role") == "user"]
    if len(turns) < 2:
        return None
    start = turns[min(num_turns, len(turns) - 1)]
    return [m for m in messages[:start] if m.get("role") in INSTRUCTIONS] + messages[start:]

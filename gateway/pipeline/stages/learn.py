"""learn: what later requests are routed by, once an exchange has ended."""

from __future__ import annotations

from gateway.exchange.exchange import Exchange, Stage
from gateway.routing.memory import RoutingMemory


class Learn(Stage):
    """The stage, with the memory of all versions of the policies."""

    is_for_calls = True

    def __init__(self, memory: RoutingMemory) -> None:
        self._memory = memory

    def settle(self, exchange: Exchange) -> None:
        """Remember how fast and how long the answer was, and which model gave it."""
        self._memory.learn(exchange)

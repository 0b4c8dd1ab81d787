"""What routing knows of earlier requests in one gateway worker, whatever the policies' version."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.accounting.ledger import Ledger
from gateway.exchange.exchange import Exchange
from gateway.routing.conversations import Conversations
from gateway.routing.moving_means import MovingMeans
from gateway.routing.shadows import Shadows
from policies.choose import Choose
from router.strategies import Strategy, strategy_of

USUAL_ANSWER_TOKENS = 64.0


def _latencies() -> MovingMeans:
    return MovingMeans(0.0)


def _answer_tokens() -> MovingMeans:
    return MovingMeans(USUAL_ANSWER_TOKENS)


@dataclass(frozen=True, slots=True)
class RoutingMemory:
    """Bounded, in memory."""

    latencies: MovingMeans = field(default_factory=_latencies)  # seconds to the first piece; 0.0: unknown
    answer_tokens: MovingMeans = field(default_factory=_answer_tokens)
    conversations: Conversations = field(default_factory=Conversations)
    ledger: Ledger = field(default_factory=Ledger)
    shadows: Shadows = field(default_factory=Shadows)
    strategies: dict[str, tuple[Choose, Strategy]] = field(default_factory=dict)  # by place in the policies

    def strategy(self, place: str, section: Choose) -> Strategy:
        """The strategy of this `choose`, with what it has learned while the section was the same."""
        known = self.strategies.get(place)
        if known is None or known[0] != section:
            known = self.strategies[place] = section, strategy_of(section)
        return known[1]

    def learn(self, exchange: Exchange) -> None:
        """An exchange has ended."""
        waited_s = exchange.asked.telemetry.time_to_first_chunk_s
        if exchange.model is not None and waited_s is not None:
            self.latencies.observe(exchange.model.name, waited_s)
            if exchange.usage.completion_tokens:
                self.answer_tokens.observe(exchange.model.name, exchange.usage.completion_tokens)
        self.conversations.remember(exchange)

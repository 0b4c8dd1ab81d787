"""What routing has learned from earlier requests in one gateway worker, whatever the policies' version."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.accounting.ledger import Ledger
from gateway.pipeline.conversations import Conversations
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.latency import Latencies


@dataclass(frozen=True, slots=True)
class RoutingMemory:
    """Bounded, in memory."""

    latencies: Latencies = field(default_factory=Latencies)
    conversations: Conversations = field(default_factory=Conversations)
    ledger: Ledger = field(default_factory=Ledger)

    def learn(self, exchange: Exchange) -> None:
        """An exchange has ended."""
        waited_s = exchange.telemetry.time_to_first_chunk_s
        if exchange.model is not None and waited_s is not None:
            self.latencies.observe(exchange.model.name, waited_s)
        self.conversations.remember(exchange)

"""record_decision: one line in the decision log for each request that was routed."""

from __future__ import annotations

from gateway.exchange.exchange import Exchange, Stage
from gateway.routing.decision_log import DecisionLog


class RecordDecision(Stage):
    """The stage."""

    is_for_calls = True

    def __init__(self, log: DecisionLog | None) -> None:
        """None: nothing is recorded."""
        self._log = log

    async def enter(self, exchange: Exchange) -> None:
        """Keep the values as they are when the decision is taken."""
        if self._log is not None:
            self._log.note(exchange)

    def settle(self, exchange: Exchange) -> None:
        """Write them with the outcome."""
        if self._log is not None:
            self._log.record(exchange)

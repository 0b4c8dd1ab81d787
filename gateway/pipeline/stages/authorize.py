"""authorize: from API key to principal. First, so that no body is read for an unknown caller."""

from __future__ import annotations

from gateway.auth import KeyRing
from gateway.exchange.exchange import Exchange, Stage
from gateway.telemetry import spans


class Authorize(Stage):
    """The stage, with the configured keys."""

    def __init__(self, keys: KeyRing, policy_version: str) -> None:
        """`policy_version`: for spans."""
        self._keys = keys
        self._policy_version = policy_version

    async def enter(self, exchange: Exchange) -> None:
        """Fill `exchange.principal`. Raises Unauthorized."""
        with exchange.asked.telemetry.stage(spans.STAGE_AUTHORIZE):
            exchange.principal = self._keys.caller(exchange.asked.authorization, exchange.asked.caller)
        exchange.asked.telemetry.annotate(
            {spans.TENANT: exchange.principal.tenant, spans.POLICY_VERSION: self._policy_version}
        )

"""authorize: from API key to principal. First, so that no body is read for an unknown caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.auth import KeyRing
from gateway.exchange.exchange import Exchange
from gateway.telemetry import spans


def authorize(keys: KeyRing, policy_version: str) -> Callable[[Exchange], Awaitable[None]]:
    """A stage that fills `exchange.principal`; raises Unauthorized."""

    async def stage(exchange: Exchange) -> None:
        with exchange.telemetry.stage(spans.STAGE_AUTHORIZE):
            exchange.principal = keys.caller(exchange.authorization, exchange.caller)
        exchange.telemetry.annotate(
            {spans.TENANT: exchange.principal.tenant, spans.POLICY_VERSION: policy_version}
        )

    return stage

"""authorize: from API key to principal. First, so that no body is read for an unknown caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.auth import KeyRing
from gateway.pipeline.exchange import Exchange
from gateway.telemetry import spans


def authorize(keys: KeyRing, policy_version: str) -> Callable[[Exchange], Awaitable[None]]:
    """A stage that fills `exchange.principal`; raises Unauthorized."""

    async def stage(exchange: Exchange) -> None:
        with exchange.telemetry.stage(spans.STAGE_AUTHORIZE):
            caller = exchange.caller
            exchange.principal = (
                keys.identify(exchange.authorization) if caller is None else keys.principal_of(caller.tenant)
            )
        exchange.telemetry.annotate(
            {spans.TENANT: exchange.principal.tenant, spans.POLICY_VERSION: policy_version}
        )

    return stage

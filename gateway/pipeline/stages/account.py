"""account: what the exchange cost and how it ended, for metrics and spans."""

from __future__ import annotations

from gateway.pipeline.exchange import Exchange
from gateway.telemetry.request import CallResult


def account(exchange: Exchange) -> None:
    """Record the end of an exchange that reached a model; others are recorded by the door."""
    if exchange.model is None:
        return
    exchange.telemetry.call_ended(
        CallResult(
            usage=exchange.usage,
            finish_reasons=exchange.finish_reasons,
            response_id=exchange.response_id,
            response_model=exchange.model.name,
            error_type="" if exchange.error is None else type(exchange.error).__name__,
        )
    )

"""account: token usage and outcome of the exchange, for metrics and spans."""

from __future__ import annotations

from gateway.answer import Embedded
from gateway.pipeline.exchange import Exchange
from gateway.telemetry.request import CallResult


def account(exchange: Exchange) -> None:
    """Record the end of a model call. Exchanges without one are recorded by the ASGI endpoint alone."""
    if exchange.model is None:
        return
    answer = None if isinstance(exchange.answer, Embedded) else exchange.answer
    exchange.telemetry.call_ended(
        CallResult(
            usage=None if _is_follower(exchange) else exchange.usage,
            finish_reasons=answer.finish_reasons if answer is not None else (),
            response_id=answer.response_id if answer is not None else "",
            response_model=exchange.model.name,
            error_type="" if exchange.error is None else type(exchange.error).__name__,
        )
    )


def _is_follower(exchange: Exchange) -> bool:
    """Whether the answer is another exchange's too, which counts its tokens."""
    return exchange.cache_use is not None and exchange.cache_use.outcome == "shared"

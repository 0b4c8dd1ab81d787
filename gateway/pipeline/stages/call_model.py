"""call_model: hand the exchange to the model's provider. What comes back may still be under way."""

from __future__ import annotations

from gateway.pipeline.exchange import Exchange
from gateway.telemetry import spans


async def call_model(exchange: Exchange) -> None:
    """Fill `exchange.answer` and `exchange.usage`; raises what the provider raises."""
    model = exchange.model
    assert model is not None
    provider_name = spans.PROVIDER_OPENAI if model.kind == "upstream" else spans.PROVIDER_OURS
    exchange.telemetry.call_started(model.name, provider_name, exchange.body, model.metrics_label)
    exchange.watch.expect(model.limits)
    if exchange.endpoint == "chat":
        exchange.answer = await model.provider.chat(exchange)
    elif exchange.endpoint == "completions":
        exchange.answer = await model.provider.complete(exchange)
    else:
        exchange.answer = await model.provider.embed(exchange)
    exchange.usage = exchange.answer.usage

"""call_model: hand the request to the model's provider. The answer that comes back may still be generated."""

from __future__ import annotations

from gateway.pipeline.exchange import Exchange
from gateway.requests.types import ChatRequest, CompletionRequest
from gateway.telemetry import spans


async def call_model(exchange: Exchange) -> None:
    """Fill `exchange.answer`; raises what the provider raises."""
    model, request = exchange.model, exchange.request
    assert model is not None and request is not None
    provider_name = spans.PROVIDER_OPENAI if model.kind == "upstream" else spans.PROVIDER_OURS
    exchange.telemetry.call_started(model.name, provider_name, exchange.body, model.metrics_label)
    exchange.watch.expect(model.limits)
    if isinstance(request, ChatRequest):
        exchange.answer = await model.provider.chat(exchange.model_call(request))
    elif isinstance(request, CompletionRequest):
        exchange.answer = await model.provider.complete(exchange.model_call(request))
    else:
        exchange.answer = await model.provider.embed(exchange.model_call(request))

"""call_model: pass the request to the model's provider. Its answer may still be generating on return."""

from __future__ import annotations

from gateway.pipeline.exchange import Exchange
from gateway.requests.types import ChatRequest, CompletionRequest


async def call_model(exchange: Exchange) -> None:
    """Fill `exchange.answer` unless look_up has. Raises what the provider raises."""
    if exchange.answer is not None:
        return
    model, request = exchange.model, exchange.request
    assert model is not None
    exchange.start_call(model)
    if isinstance(request, ChatRequest):
        exchange.answer = await model.provider.chat(exchange.model_call(request))
    elif isinstance(request, CompletionRequest):
        exchange.answer = await model.provider.complete(exchange.model_call(request))
    else:
        exchange.answer = await model.provider.embed(exchange.model_call(request))

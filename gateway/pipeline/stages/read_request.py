"""read_request: bytes → JSON → typed request, once."""

from __future__ import annotations

from gateway.pipeline.exchange import Exchange
from gateway.requests.parse import decode_body, typed
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest

KINDS: dict[str, type[ChatRequest] | type[CompletionRequest] | type[EmbeddingRequest]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "embeddings": EmbeddingRequest,
}


async def read_request(exchange: Exchange) -> None:
    """Fill `exchange.body` and `exchange.request`; raises InvalidRequest, BodyTooLarge or ClientGone."""
    exchange.body = decode_body(await exchange.read_body())
    exchange.request = typed(exchange.body, KINDS[exchange.endpoint])

"""read_request: bytes → JSON → typed request, once."""

from __future__ import annotations

from gateway.exchange.exchange import Exchange, Stage
from gateway.requests.parse import decode_body, typed
from gateway.requests.reasoning import with_effort
from gateway.requests.types import ChatRequest
from gateway.requests.unknown_fields import collecting


class ReadRequest(Stage):
    """The stage."""

    async def enter(self, exchange: Exchange) -> None:
        """Fill `exchange.body` and `exchange.request`. Raises ApiError."""
        exchange.body = decode_body(await exchange.asked.read_body())
        if exchange.asked.translate is not None:
            with collecting() as exchange.unknown:
                exchange.body = await exchange.asked.translate(exchange.body, exchange.principal)
        request = typed(exchange.body, exchange.asked.endpoint.request)
        exchange.request = with_effort(request) if isinstance(request, ChatRequest) else request

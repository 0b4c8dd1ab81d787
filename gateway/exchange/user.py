"""Who uses the client's application, without the name."""

from __future__ import annotations

from gateway.exchange.exchange import Exchange
from gateway.response_cache.use import user_digest


def user_hash(exchange: Exchange) -> str:
    """A digest of the end user that the request names; "" for none."""
    request = getattr(exchange, "request", None)  # unset where the body was refused
    name = getattr(request, "safety_identifier", None) or getattr(request, "user", None)
    return user_digest(exchange.principal.tenant, name) if name else ""

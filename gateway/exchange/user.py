"""Who uses the client's application, without the name."""

from __future__ import annotations

from gateway.exchange.exchange import Exchange
from gateway.response_cache.use import user_digest


def user_hash(exchange: Exchange) -> str:
    """A digest of the end user that the request names; "" for none."""
    return user_of(exchange.principal.tenant, getattr(exchange, "request", None))


def user_of(tenant: str, request: object) -> str:
    """A digest of the end user that a tenant's request names; "" for none, as where the body was refused."""
    name = getattr(request, "safety_identifier", None) or getattr(request, "user", None)
    return user_digest(tenant, name) if name else ""

"""Engines of a model that run elsewhere: how a gateway reaches them."""

from __future__ import annotations

from backend.server.endpoints import Endpoint, RemoteEndpoint
from gateway.settings import Settings
from policies.document import EngineModel
from policies.engine_addresses import parse_address
from policies.names import replica_name


def remote_endpoints(model: str, engine: EngineModel, settings: Settings) -> dict[str, Endpoint]:
    """The engines that the policies list, by the name of each."""
    found: dict[str, Endpoint] = {}
    for text in engine.addresses:
        address = parse_address(text)
        found[replica_name(model, text)] = RemoteEndpoint(text, address.host, address.port)
    return found

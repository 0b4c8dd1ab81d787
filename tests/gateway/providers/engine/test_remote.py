"""Where a gateway finds engines that run elsewhere."""

from __future__ import annotations

from backend.server.endpoints import RemoteEndpoint
from gateway.providers.engine.remote import remote_endpoints
from gateway.settings import Settings
from policies.document import EngineModel
from policies.names import split_replica


def test_addresses() -> None:
    addresses = ["tcp://127.0.0.1:7600", "tcp://[::1]:7601"]
    found = remote_endpoints("m", EngineModel(checkpoint="c", addresses=addresses), Settings())
    assert [split_replica(name) for name in found] == [("m", each) for each in addresses]
    assert [*found.values()] == [
        RemoteEndpoint(addresses[0], "127.0.0.1", 7600),
        RemoteEndpoint(addresses[1], "::1", 7601),
    ]

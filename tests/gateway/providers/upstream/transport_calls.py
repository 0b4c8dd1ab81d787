"""One request through a transport to a scripted server."""

from __future__ import annotations

import pytest

from gateway.providers.upstream.transport import ConnectionBroken, Reply, UpstreamTransport

MIB = 1 << 20


async def post(client: UpstreamTransport, timeout_s: float = 5.0) -> Reply:
    return await client.post("/x", {}, b"{}", timeout_s)


async def ask(client: UpstreamTransport, timeout_s: float = 5.0) -> bytes:
    """The whole body of the answer."""
    return await (await post(client, timeout_s)).read_all(timeout_s, MIB)


async def check_second_request(client: UpstreamTransport, *, is_sent_again: bool) -> None:
    """Ask twice: the second request succeeds on another connection, or fails."""
    assert await ask(client) == b"ok"
    if is_sent_again:
        assert await ask(client) == b"ok"
    else:
        with pytest.raises(ConnectionBroken):
            await ask(client)

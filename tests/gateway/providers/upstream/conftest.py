from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from gateway.providers.upstream.open_transport import open_transport
from gateway.providers.upstream.transport import NetworkOptions, UpstreamTransport
from tests.gateway.providers.upstream.provider_calls import OPENED

Open = Callable[[str], UpstreamTransport]


@pytest.fixture(params=["http_client", "httpx_transport"])
async def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The test runs on both transports."""
    if request.param == "httpx_transport":
        monkeypatch.setattr(NetworkOptions, "is_default", False)
    yield str(request.param)
    while OPENED:
        await OPENED.pop().close()


@pytest.fixture
async def open_client(transport: str) -> AsyncIterator[Open]:
    """Opens either transport on a base URL; closed after the test."""
    opened: list[UpstreamTransport] = []

    def open_one(base_url: str) -> UpstreamTransport:
        opened.append(open_transport(base_url, NetworkOptions(), connect_timeout_s=5.0, headers={}))
        return opened[-1]

    yield open_one
    for client in opened:
        await client.close()


@pytest.fixture
def no_secret_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert "canary" not in caplog.text

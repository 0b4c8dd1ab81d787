from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.providers.upstream.transport import NetworkOptions
from tests.gateway.providers.upstream.provider_calls import OPENED


@pytest.fixture(params=["http_client", "httpx_transport"])
async def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The test runs on both transports."""
    if request.param == "httpx_transport":
        monkeypatch.setattr(NetworkOptions, "is_default", False)
    yield str(request.param)
    while OPENED:
        await OPENED.pop().close()


@pytest.fixture
def no_secret_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert "canary" not in caplog.text

from __future__ import annotations

import pytest

from gateway.auth import KeyRing
from gateway.errors import Unauthorized
from gateway.pipeline.stages.authorize import Authorize
from tests.gateway.pipeline.exchanges import exchange_of


async def test_fills_the_principal_or_refuses() -> None:
    stage = Authorize(KeyRing(["sk-a"]), "v1")
    exchange = exchange_of(authorization="Bearer sk-a")
    await stage.enter(exchange)
    assert exchange.principal.tenant.startswith("key-")
    with pytest.raises(Unauthorized):
        await stage.enter(exchange_of())

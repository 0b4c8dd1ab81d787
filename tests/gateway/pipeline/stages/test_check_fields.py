from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.pipeline.stages.check_fields import CheckFields
from tests.gateway.pipeline.exchanges import exchange_of


async def test_unknown_fields_are_refused_where_no_engine_ignores_them() -> None:
    exchange = exchange_of()
    await CheckFields().enter(exchange)
    exchange.unknown = [InvalidRequest("first"), InvalidRequest("second")]
    with pytest.raises(InvalidRequest, match="first"):
        await CheckFields().enter(exchange)

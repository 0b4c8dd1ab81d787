from __future__ import annotations

import pytest

from gateway.errors import NotFound
from gateway.pipeline.models import ModelTable
from gateway.pipeline.stages.choose_model import choose_model
from gateway.pipeline.stages.read_request import read_request
from tests.gateway.pipeline.exchanges import exchange_of, models


async def test_follows_routes_or_refuses() -> None:
    exchange = exchange_of()
    await read_request(exchange)
    await choose_model(models())(exchange)
    assert exchange.model is not None and exchange.model.name == "m"
    with pytest.raises(NotFound):
        await choose_model(ModelTable([], {}))(exchange)

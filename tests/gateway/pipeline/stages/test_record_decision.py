from __future__ import annotations

from gateway.pipeline.stages.record_decision import RecordDecision
from tests.gateway.pipeline.exchanges import exchange_of


async def test_without_a_log_nothing_is_kept() -> None:
    stage, exchange = RecordDecision(None), exchange_of()
    await stage.enter(exchange)
    stage.settle(exchange)
    assert exchange.noted is None

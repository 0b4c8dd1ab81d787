from __future__ import annotations

from gateway.pipeline.stages.learn import Learn
from gateway.routing.memory import RoutingMemory
from tests.gateway.pipeline.exchanges import exchange_of, models, routed_to


async def test_the_model_that_answered_is_remembered() -> None:
    memory, exchange = RoutingMemory(), exchange_of()
    exchange.route(routed_to(models().resolve("m"), conversation=b"key"))
    Learn(memory).settle(exchange)
    assert list(memory.conversations._models.values()) == ["m"]

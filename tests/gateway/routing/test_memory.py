from __future__ import annotations

from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider
from gateway.routing.candidates import Selection
from gateway.routing.memory import RoutingMemory
from gateway.web.deadlines import TimeLimits
from policies.choose import ChoiceCandidate, Choose
from policies.document import Policies
from policies.routes import Route
from router.strategies.quality_per_cost import MIN_WINDOW
from tests.gateway.pipeline.exchanges import exchange_with

CANDIDATES = {"small": ChoiceCandidate(quality=0.6, cost=0.3), "large": ChoiceCandidate(quality=0.9, cost=1)}


def section(share: float) -> Choose:
    return Choose(candidates=dict(CANDIDATES), cost_weight=0.0, strong_share=share)


def test_a_strategy_is_kept_while_its_section_is_the_same() -> None:
    memory = RoutingMemory()
    first = memory.strategy("routes.auto", section(0.0))
    assert memory.strategy("routes.auto", section(0.0)) is first
    assert memory.strategy("routes.other", section(0.0)) is not first
    assert memory.strategy("routes.auto", section(0.5)) is not first


async def test_a_share_of_the_large_model_holds_over_a_reload() -> None:
    """A strategy that began again would send the next requests by its cost weight alone."""
    table = ModelTable(
        [ServedModel(name, "engine", FakeProvider(), TimeLimits(None, None, 60)) for name in CANDIDATES], {}
    )
    memory = RoutingMemory()
    exchange = exchange_with({"model": "auto", "messages": [{"role": "user", "content": "hi"}]})
    await ReadRequest().enter(exchange)

    def version(number: int) -> Selection:
        policies = Policies(routes={"auto": Route(choose=section(0.0))}, version=f"v{number}")
        return Selection(table, policies, memory=memory)

    before = version(1)
    chosen = [(await before.choose(exchange, "routes.auto")).models[0] for _ in range(MIN_WINDOW)]
    assert (chosen[0], chosen[-1]) == ("large", "small")
    assert (await version(2).choose(exchange, "routes.auto")).models == ["small"]

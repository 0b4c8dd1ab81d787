"""`choose`: which candidates are considered, with what is known about each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.errors import ApiError
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelState, ModelTable, ServedModel
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider
from gateway.routing.candidates import Selection
from gateway.routing.memory import RoutingMemory
from gateway.routing.moving_means import MovingMeans
from gateway.web.deadlines import TimeLimits
from policies.choose import ChoiceCandidate, Choose
from policies.document import EncoderModel, ModelEntry, Policies, Price
from policies.routes import Route
from tests.gateway.pipeline.exchanges import exchange_with

EASY = "What is 17 + 25?"
HARD = "Tom has 14 apples, gives away 3, then doubles what is left and sells 5. How many apples remain?"
SMALL, LARGE = ChoiceCandidate(quality=0.6, cost=0.3), ChoiceCandidate(quality=0.9, cost=1.0)
LIMITS = TimeLimits(None, None, 60)


def choose(**fields: Any) -> Choose:  # noqa: ANN401
    given = {"candidates": {"small": SMALL, "large": LARGE}, "estimate": "builtin:pico", "cost_weight": 0.4}
    return Choose(**{**given, **fields})


async def chosen(
    section: Choose,
    *turns: str,
    down: tuple[str, ...] = (),
    latencies: MovingMeans | None = None,
    memory: RoutingMemory | None = None,
    **fields: Any,  # noqa: ANN401
) -> Exchange:
    price = Price(input_usd_per_million_tokens=1.0, output_usd_per_million_tokens=2.0)
    table = ModelTable(
        [
            ServedModel(
                name, "engine", FakeProvider(), LIMITS,
                lambda name=name: ModelState(ready=name not in down),  # type: ignore[misc]
                price=price if name == "large" else None,
            )
            for name in ("small", "large")
        ],
        {},
    )  # fmt: skip
    given = Policies(routes={"auto": Route(choose=section)})
    messages = [{"role": "user", "content": turn} for turn in turns]
    exchange = exchange_with({"model": "auto", "messages": messages, **fields})
    await ReadRequest().enter(exchange)
    memory = memory or RoutingMemory(latencies or MovingMeans(0.0))
    selection = Selection(table, given, memory=memory, draw=lambda: 0.5)
    await ChooseModel(table, given, selection=selection).enter(exchange)
    return exchange


def name_of(exchange: Exchange) -> str:
    assert exchange.model is not None
    return exchange.model.name


async def test_easy_questions_go_to_the_small_model_and_hard_ones_to_the_large_one() -> None:
    easy = await chosen(choose(), EASY)
    assert name_of(easy) == "small"
    assert easy.reason.startswith("route auto, default, quality_per_cost: gain 0.")
    assert easy.decided.decision is not None and set(easy.decided.decision.values) == {"small", "large"}
    assert name_of(await chosen(choose(), HARD)) == "large"


async def test_a_short_turn_after_a_hard_one_stays_with_the_large_model_for_a_while() -> None:
    follow_up = "And twice that?"
    assert name_of(await chosen(choose(), follow_up)) == "small"
    assert name_of(await chosen(choose(), HARD, follow_up)) == "large"
    assert name_of(await chosen(choose(), HARD, EASY, EASY, EASY, EASY)) == "small"


async def test_candidates_that_cannot_answer_are_left_out() -> None:
    candidates = {
        "small": ChoiceCandidate(
            quality=0.6, cost=0.3, max_tokens=20, can_reason=False, can_call_tools=False
        ),
        "large": LARGE,
    }
    section = choose(candidates=candidates, estimate=None, strategy="cheapest")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert name_of(await chosen(section, EASY)) == "small"
    assert name_of(await chosen(section, "x" * 100)) == "large"
    assert name_of(await chosen(section, EASY, tools=[tool])) == "large"
    assert name_of(await chosen(section, EASY, reasoning_effort="low")) == "large"
    assert name_of(await chosen(section, EASY, reasoning_effort="none")) == "small"
    narrow = choose(candidates={"small": candidates["small"]}, estimate=None)
    with pytest.raises(ApiError, match="None of the models small can answer this request: it has about 25 "):
        await chosen(narrow, "x" * 100)


async def test_a_model_that_is_away_is_not_chosen_unless_all_are() -> None:
    assert name_of(await chosen(choose(), HARD, down=("large",))) == "small"
    assert name_of(await chosen(choose(), HARD, down=("small", "large"))) == "large"


async def test_what_is_unfamiliar_goes_to_the_default() -> None:
    section = choose(default="large")
    found = await chosen(section, "Женщина идёт домой вечером по длинной улице")
    assert name_of(found) == "large"
    assert "familiarity 0.00 is below 0.2" in found.reason
    assert found.decided.conversation  # its next turn knows the model
    assert name_of(await chosen(section, EASY)) == "small"


async def test_the_fastest_is_the_one_that_answered_fastest() -> None:
    latencies = MovingMeans(0.0)
    latencies.observe("small", 2.0)
    latencies.observe("large", 0.5)
    section = choose(strategy="fastest", estimate=None)
    assert name_of(await chosen(section, EASY, latencies=latencies)) == "large"


async def test_a_budget_for_the_day_is_spread_over_the_requests_to_come() -> None:
    section = choose(budget_usd_per_day=10.0, cost_weight=0.0, estimate=None)
    memory = RoutingMemory()
    memory.ledger.counters.now_s = lambda: 1_800_014_400.0  # noon
    found = await chosen(section, EASY, memory=memory)
    assert name_of(found) == "large" and found.decided.choice.place == "routes.auto"
    target = memory.ledger.pace("routes.auto", 10.0)
    assert 0 < target < 10.0
    assert memory.ledger.pace("routes.auto", -1.0) == 0.0


async def test_feedback_decides_for_a_bandit() -> None:
    memory = RoutingMemory()
    for _ in range(50):
        memory.ledger.judge("routes.auto", "small", 1.0)
        memory.ledger.judge("routes.auto", "large", 0.1)
    found = await chosen(choose(strategy="bandit", estimate=None, cost_weight=0.0), EASY, memory=memory)
    assert name_of(found) == "small" and "after 50 judgements" in found.reason


async def test_who_answered_the_last_turn_is_preferred_a_little() -> None:
    section = choose(estimate=None, cost_weight=0.43)
    turns = [{"role": "user", "content": EASY}, {"role": "assistant", "content": "42"}]
    assert name_of(await chosen(section, messages=[*turns, {"role": "user", "content": "Why?"}])) == "small"
    memory, first = RoutingMemory(), await chosen(section, EASY, memory=RoutingMemory())
    memory.conversations.previous_model(first)
    first.model = ServedModel("large", "engine", FakeProvider(), LIMITS)
    memory.conversations.remember(first)
    messages = [*turns, {"role": "user", "content": "Why?"}]
    assert name_of(await chosen(section, messages=messages, memory=memory)) == "large"


async def test_costs_default_to_prices() -> None:
    candidates = {"small": ChoiceCandidate(quality=0.8), "large": ChoiceCandidate(quality=0.9)}
    section = choose(candidates=candidates, estimate=None, cost_weight=0.2)
    assert name_of(await chosen(section, EASY)) == "small"  # it has no price
    assert (
        name_of(await chosen(choose(candidates=candidates, estimate=None, cost_weight=0.0), EASY)) == "large"
    )


async def test_an_estimate_over_vectors_asks_for_the_meaning_once() -> None:
    asked: list[str] = []

    async def embed(text: str) -> Any:  # noqa: ANN401
        asked.append(text)
        return np.full(384, 384**-0.5, np.float32)

    section = choose(estimate="builtin:general")
    table = ModelTable(
        [ServedModel(name, "engine", FakeProvider(), LIMITS) for name in ("small", "large")], {}
    )
    exchange = exchange_with({"model": "auto", "messages": [{"role": "user", "content": EASY}]})
    await ReadRequest().enter(exchange)
    encoder = EncoderModel(checkpoint="builtin:all-minilm-l6-v2")
    given = Policies(models={"minilm": ModelEntry(encoder=encoder)}, routes={"auto": Route(choose=section)})
    await Selection(table, given, embed).choose(exchange, "routes.auto")
    assert asked == [EASY] and exchange.meaning is not None

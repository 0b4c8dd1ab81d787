from __future__ import annotations

import asyncio
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.answer import Usage
from gateway.errors import UpstreamFailed
from gateway.exchange.exchange import Asked, Exchange, NotYet
from gateway.fleet.budget import RetryBudget
from gateway.fleet.fleet import Fleet, Timing
from gateway.fleet.health import Health
from gateway.fleet.target import Target
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.base import ModelCall
from gateway.providers.fake import FakeProvider
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import Tracing
from policies.retries import Hedge
from policies.routes import Action
from policies.routing import Choice
from tests.gateway.pipeline.exchanges import METRICS, exchange_of, exchange_with, models, routed_to

MAX_FIELDS = 22
"""Fields of `Exchange`. The number may shrink: a stage's own state belongs to the stage, or to a record."""
MAX_ASSERTS = 0
"""Times that code of the gateway asserts that a value is not None. The number may shrink."""


async def test_what_came_in_does_not_change() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        exchange_of().asked.authorization = "Bearer other"  # type: ignore[misc]


async def test_what_no_stage_has_filled_is_not_read() -> None:
    exchange = exchange_of()
    with pytest.raises(NotYet, match=r"exchange\.model is read before choose_model"):
        _ = exchange.chosen_model
    with pytest.raises(NotYet, match=r"exchange\.routed"):
        _ = exchange.decided
    exchange.route(routed_to(models().resolve("m"), reason="why"))
    assert exchange.chosen_model is exchange.model is exchange.decided.model
    assert exchange.reason == "why"


async def test_what_was_decided_does_not_change_when_another_model_answers() -> None:
    exchange, model = exchange_of(), models().resolve("m")
    exchange.route(routed_to(model, reason="why"))
    with pytest.raises(AttributeError, match="immutable"):
        exchange.decided.reason = "other"  # type: ignore[misc]
    exchange.model, exchange.reason = replace(model, name="n"), "why, m: timeout"
    assert exchange.decided.model is model and exchange.decided.reason == "why"


def test_the_exchange_does_not_grow() -> None:
    assert len(fields(Exchange)) <= MAX_FIELDS
    assert len(Asked.__struct_fields__) <= 12


def test_types_say_what_is_there() -> None:
    texts = [path.read_text("utf-8") for path in Path("gateway").rglob("*.py")]
    assert sum(len(re.findall(r"assert .* is not None", text)) for text in texts) <= MAX_ASSERTS


async def test_the_turns_of_a_conversation_have_one_target() -> None:
    providers = [FakeProvider(), FakeProvider()]
    targets = [Target(each, Health("m"), place=str(at)) for at, each in enumerate(providers)]
    model = replace(models().resolve("m"), fleet=Fleet(targets, RetryBudget()))
    messages = [{"role": "user", "content": "hi"}]
    for num_asked in range(1, 6):
        exchange = exchange_with({"model": "m", "messages": messages})
        await ReadRequest().enter(exchange)
        exchange.route(routed_to(model))
        await exchange.ask(model, exchange.asked.telemetry)
        assert sorted(len(each.asked) for each in providers) == [0, num_asked]
        messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    assert exchange.asked.telemetry.num_attempts == 1


async def test_the_loser_of_a_hedge_is_charged() -> None:
    class Hangs(FakeProvider):
        async def chat(self, call: ModelCall[Any]) -> Any:  # noqa: ANN401
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                call.lost.append(Usage(7))  # as an upstream's provider does
                raise

    targets = [Target(Hangs(), Health("m")), Target(FakeProvider(), Health("m"))]
    fleet = Fleet(targets, RetryBudget(), Timing(draw=lambda: 0.0))
    model = replace(models().resolve("m"), fleet=fleet)
    exchange = exchange_of()
    await ReadRequest().enter(exchange)
    hedge = Action(hedge=Hedge(after_s=0.001))
    exchange.route(routed_to(model, choice=Choice("", changes=(hedge,))))
    await asyncio.wait_for(exchange.ask(model, exchange.asked.telemetry), 5)
    assert exchange.rejected_usage == [(model, Usage(7))]
    assert exchange.asked.telemetry.num_attempts == 2


@pytest.mark.parametrize("endpoint", ["chat", "embeddings"])
async def test_the_span_names_the_target_that_answers(endpoint: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(Tracing(provider.get_tracer("test"), provider), METRICS)
    for num_targets in (1, 2):
        targets = [Target(FakeProvider(), Health("m"), place=f"http://{at}") for at in range(num_targets)]
        targets[0].health.failed("key_refused", UpstreamFailed("x"))
        model = replace(models().resolve("m"), fleet=Fleet(targets, RetryBudget()))
        exchange = exchange_of(endpoint)
        asked = telemetry.begin(endpoint, "POST", "", [])
        exchange.asked = msgspec.structs.replace(exchange.asked, telemetry=asked)
        await ReadRequest().enter(exchange)
        exchange.route(routed_to(model))
        await exchange.ask(model, asked)
        asked.end(200)
    found = [(span.attributes or {}).get("penstock.target") for span in exporter.get_finished_spans()]
    assert found == [None, "http://1"]

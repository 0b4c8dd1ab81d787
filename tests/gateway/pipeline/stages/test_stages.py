"""Each stage alone, on an exchange without any HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.auth import KeyRing
from gateway.errors import BodyTooLarge, InvalidRequest, NotFound, TimedOut, Unauthorized
from gateway.pipeline.exchange import Endpoint, Exchange
from gateway.pipeline.models import ModelTable, ServedModel
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.stages.authorize import authorize
from gateway.pipeline.stages.choose_model import choose_model
from gateway.pipeline.stages.read_request import read_request
from gateway.providers.fake import FakeProvider
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.deadlines import Limits, Watch

BODIES: dict[Endpoint, dict[str, Any]] = {
    "chat": {"model": "auto", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi"},
    "embeddings": {"model": "m", "input": "hi"},
}
METRICS = Metrics(["m"])
TELEMETRY = Telemetry(OFF, METRICS)


def exchange_of(endpoint: Endpoint = "chat", authorization: str = "") -> Exchange:
    async def read_body() -> bytes:
        return json.dumps(BODIES[endpoint]).encode()

    watch = Watch(60)
    watch.close()
    telemetry = TELEMETRY.begin(endpoint, "POST", "", [])
    return Exchange("id", endpoint, telemetry, read_body, watch, authorization)


def models(provider: FakeProvider | None = None) -> ModelTable:
    model = ServedModel("m", "engine", provider or FakeProvider(), Limits(None, None, 60))
    return ModelTable([model], {"auto": "m"})


async def test_authorize_fills_the_principal_or_refuses() -> None:
    stage = authorize(KeyRing(["sk-a"]), "v1")
    exchange = exchange_of(authorization="Bearer sk-a")
    await stage(exchange)
    assert exchange.principal.tenant.startswith("key-")
    with pytest.raises(Unauthorized):
        await stage(exchange_of())


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [("chat", ChatRequest), ("completions", CompletionRequest), ("embeddings", EmbeddingRequest)],
)
async def test_read_request_fills_body_and_request(endpoint: Endpoint, kind: type) -> None:
    exchange = exchange_of(endpoint)
    await read_request(exchange)
    assert exchange.body == BODIES[endpoint] and type(exchange.request) is kind


async def test_choose_model_follows_routes_or_refuses() -> None:
    exchange = exchange_of()
    await read_request(exchange)
    await choose_model(models())(exchange)
    assert exchange.model is not None and exchange.model.name == "m"
    with pytest.raises(NotFound):
        await choose_model(ModelTable([], {}))(exchange)


@pytest.mark.parametrize("endpoint", BODIES)
async def test_the_stages_in_order_give_an_answer(endpoint: Endpoint) -> None:
    provider = FakeProvider()
    exchange = exchange_of(endpoint)
    pipeline = Pipeline(KeyRing([]), models(provider))
    await pipeline.ask(exchange)
    (asked,) = provider.asked
    assert asked.request is exchange.request and asked.body is exchange.body
    assert (asked.request_id, asked.tenant_salt) == (exchange.request_id, exchange.principal.tenant_salt)
    assert exchange.answer is not None and exchange.usage is exchange.answer.usage
    pipeline.settle(exchange)


async def test_settling_tells_how_it_ended() -> None:
    exchange = exchange_of()
    pipeline = Pipeline(KeyRing([]), models())
    await pipeline.ask(exchange)
    exchange.error = TimedOut("late")
    pipeline.settle(exchange)
    found = METRICS.render().decode()
    assert 'penstock_model_call_errors_total{endpoint="chat",error="TimedOut",model="m"} 1.0' in found or (
        'penstock_model_call_errors_total{endpoint="chat",model="m",error="TimedOut"} 1.0' in found
    )


@pytest.mark.parametrize("refusal", [BodyTooLarge("big"), InvalidRequest("bad")])
async def test_a_refusal_stops_the_stages(refusal: Exception) -> None:
    async def refuse() -> bytes:
        raise refusal

    exchange = exchange_of()
    exchange.read_body = refuse
    provider = FakeProvider()
    pipeline = Pipeline(KeyRing([]), models(provider))
    with pytest.raises(type(refusal)):
        await pipeline.ask(exchange)
    pipeline.settle(exchange)
    assert provider.asked == [] and exchange.model is None

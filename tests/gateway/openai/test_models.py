"""Prices and route targets in /v1/models, and what clients of two vendors read there."""

from __future__ import annotations

import anthropic
import httpx2
import pytest

from gateway.exchange.model_table import Kind, ServedModel
from gateway.openai.models import model_entry
from gateway.providers.fake import FakeProvider
from gateway.settings import Settings
from gateway.web.deadlines import TimeLimits
from gateway.wiring.app import build_app
from policies.document import EngineModel, ModelEntry, Policies, Price, Route
from tests.gateway.conftest import http_client


@pytest.mark.parametrize(
    ("usd_per_million", "per_token"),
    [(0.0, "0"), (0.019, "0.000000019"), (0.15, "0.00000015"), (30, "0.00003"), (2e6, "2")],
)
async def test_price_is_listed_per_token_as_text(usd_per_million: float, per_token: str) -> None:
    price = Price(input_usd_per_million_tokens=usd_per_million, output_usd_per_million_tokens=1.0)
    models = {
        "paid": ModelEntry(engine=EngineModel(checkpoint="/none"), price=price),
        "free": ModelEntry(engine=EngineModel(checkpoint="/none")),
    }
    policies = Policies(models=models, routes={"auto": Route(model="paid")}, version="v1")
    app = build_app(Settings(), policies, dict.fromkeys(models, FakeProvider()))
    async with http_client(app) as http:
        paid, free, auto = (await http.get("/v1/models")).json()["data"]
    assert paid["pricing"] == auto["pricing"] == {"prompt": per_token, "completion": "0.000001"}
    assert auto["root"] == "paid"
    assert not {"pricing", "root"} & set(free)


@pytest.mark.parametrize(("kind", "mode"), [("engine", "chat"), ("encoder", "embedding"), ("upstream", None)])
def test_an_entry_tells_encoders_from_what_chats(kind: Kind, mode: str | None) -> None:
    entry = model_entry("m", ServedModel("m", kind, FakeProvider(), TimeLimits(None, None, 60)))
    assert entry.get("mode") == mode


async def test_prices_of_their_own_are_listed_under_openrouters_names() -> None:
    price = Price(
        input_usd_per_million_tokens=4.0,
        output_usd_per_million_tokens=10.0,
        cached_input_usd_per_million_tokens=0.0,
        cache_write_usd_per_million_tokens=5.0,
        reasoning_usd_per_million_tokens=20.0,
        request_usd=0.002,
        machine_second_usd=1.0,
    )
    models = {"m": ModelEntry(engine=EngineModel(checkpoint="/none"), price=price)}
    app = build_app(Settings(), Policies(models=models, version="v1"), {"m": FakeProvider()})
    async with http_client(app) as http:
        (listed,) = (await http.get("/v1/models")).json()["data"]
    assert listed["pricing"] == {
        "prompt": "0.000004",
        "completion": "0.00001",
        "input_cache_read": "0",
        "input_cache_write": "0.000005",
        "internal_reasoning": "0.00002",
        "request": "0.002",
    }


async def test_anthropics_client_reads_it_strictly_validated() -> None:
    models = {name: ModelEntry(engine=EngineModel(checkpoint="/none")) for name in ("one", "two")}
    app = build_app(Settings(), Policies(models=models, version="v1"), dict.fromkeys(models, FakeProvider()))
    async with anthropic.AsyncAnthropic(
        base_url="http://gateway",
        api_key="none",
        http_client=httpx2.AsyncClient(transport=httpx2.ASGITransport(app)),
        _strict_response_validation=True,
    ) as client:
        listed = [model async for model in client.models.list()]
        assert [(model.id, model.display_name) for model in listed] == [("one", "one"), ("two", "two")]
        assert await client.models.retrieve("two") == listed[1]

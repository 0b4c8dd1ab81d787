"""Which endpoint a request gets, from what engines have published."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from backend.tokenizer import Tokenizer
from gateway.auth import KeyRing
from gateway.checkpoints import checkpoint_folder
from gateway.cli.endpoint_picker.picker import Asked, EndpointPicker, Refusal
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.service import EngineService
from gateway.requests.types import ChatRequest
from gateway.web.deadlines import TimeLimits
from tests.gateway.providers.engine.test_replicas import HELLO, STATS, Engine, engines, publish, replicas

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "What is 17 + 25? " * 40}]


@dataclass
class Fleet:
    """Two engines on other machines, and the picker that asks them."""

    engines: list[Engine]
    provider: EngineProvider
    picker: EndpointPicker

    async def pick(
        self, path: str = CHAT, key: str = "", subset: list[str] | None = None, **fields: object
    ) -> str:
        body = {"model": "m", "messages": MESSAGES} | fields
        authorization = f"Bearer {key}" if key else ""
        return await self.picker.pick(Asked(path, authorization, json.dumps(body).encode(), subset))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_checkpoint(checkpoint_folder("builtin:pico-small"))


@pytest.fixture
def fleet(tokenizer: Tokenizer) -> Fleet:
    found: Any = engines(2)
    for number, engine in enumerate(found):
        engine.host, engine.adapter_names = f"10.0.0.{number + 1}", set()
    provider = EngineProvider(EngineService(replicas(found), tokenizer), "m")
    model = ServedModel("m", "engine", provider, TimeLimits(None, None, None), engine=provider)
    return Fleet(found, provider, EndpointPicker(ModelTable([model], {}), KeyRing(["sk-a", "sk-b"]), 8080))


@pytest.mark.parametrize("holder", [0, 1])
async def test_the_holder_of_a_tenants_prefix_is_picked(fleet: Fleet, holder: int) -> None:
    salt = KeyRing(["sk-a"]).identify("Bearer sk-a").tenant_salt
    publish(
        fleet.engines[holder], await fleet.provider.prompt(ChatRequest(model="m", messages=MESSAGES), salt)
    )
    assert await fleet.pick(key="sk-a") == f"10.0.0.{holder + 1}:8080"
    fleet.engines[holder].stats = structs.replace(STATS, waiting_tokens=5_000)
    assert await fleet.pick(key="sk-a") != f"10.0.0.{holder + 1}:8080"


async def test_requests_of_other_kinds_go_by_the_queues(fleet: Fleet) -> None:
    fleet.engines[0].stats = structs.replace(STATS, waiting_tokens=5_000)
    for sent in ({"path": "/v1/responses"}, {"messages": 7}, {"model": "unknown"}):
        assert await fleet.pick(**sent) == "10.0.0.2:8080"  # type: ignore[arg-type]
    assert await fleet.picker.pick(Asked()) == "10.0.0.2:8080"
    fleet.engines[0].stats = STATS
    assert len({await fleet.picker.pick(Asked()) for _ in range(50)}) == 2, "equal queues share them"


async def test_nothing_ready_nothing_allowed_and_full_queues_are_refused(fleet: Fleet) -> None:
    assert fleet.picker.is_ready
    assert await fleet.pick(subset=["10.0.0.2:8080"]) == "10.0.0.2:8080"
    for subset in ([], ["10.0.0.3:8080"]):
        with pytest.raises(Refusal) as refused:
            await fleet.pick(subset=subset)
        assert refused.value.status == 503
    fleet.engines[0].stats = structs.replace(STATS, num_waiting=HELLO.max_queue)
    assert await fleet.pick() == "10.0.0.2:8080"
    fleet.engines[1].stats = structs.replace(STATS, num_waiting=HELLO.max_queue)
    with pytest.raises(Refusal) as refused:
        await fleet.pick()
    assert refused.value.status == 429
    for engine in fleet.engines:
        engine.ready = False
    with pytest.raises(Refusal) as refused:
        await fleet.pick()
    assert refused.value.status == 503 and not fleet.picker.is_ready


async def test_the_address_of_a_host_in_brackets(fleet: Fleet) -> None:
    for engine in fleet.engines:
        engine.host = "fd00::1"
    assert await fleet.pick() == "[fd00::1]:8080"

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.lora.info import AdapterInfo
from backend.server.engine_client import EngineClient
from backend.tokenizer import Tokenizer
from gateway.answer import Answer, Embedded, Usage
from gateway.errors import NotFound, Unavailable, UpstreamFailed
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.fleet.budget import RetryBudget
from gateway.fleet.fleet import Fleet
from gateway.fleet.health import Health
from gateway.fleet.target import Target
from gateway.providers.base import Provider
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from gateway.providers.fake import FakeProvider
from gateway.web.deadlines import TimeLimits

LIMITS = TimeLimits(1, 1, 1)


def test_names_and_routes_lead_to_models() -> None:
    small = ServedModel("small", "engine", FakeProvider(), LIMITS)
    table = ModelTable([small], {"auto": "small"})
    assert table.resolve("small") is table.resolve("auto") is small
    assert (small.owned_by, small.state().ready) == ("penstock", True)


@pytest.mark.parametrize(
    ("name", "hint"), [("smal", "'small'"), ("auot", "'auto'"), ("x" * 9999, "/v1/models")]
)
def test_the_nearest_name_is_offered(name: str, hint: str) -> None:
    table = ModelTable([ServedModel("small", "engine", FakeProvider(), LIMITS)], {"auto": "small"})
    with pytest.raises(NotFound, match=hint) as refused:
        table.resolve(name)
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    assert len(refused.value.message) < 300


async def test_a_question_of_the_gateways_own_goes_to_a_healthy_target_once() -> None:
    providers = [FakeProvider(), FakeProvider()]
    targets = [Target(each, Health("m"), place=str(at)) for at, each in enumerate(providers)]
    model = ServedModel("m", "upstream", providers[0], LIMITS, fleet=Fleet(targets, RetryBudget()))
    targets[0].health.failed("key_refused", UpstreamFailed("x"))
    asked: list[Provider] = []

    async def ask(provider: Provider) -> Answer:
        asked.append(provider)
        if len(asked) > 3:
            raise Unavailable("x")
        return Embedded([], Usage())

    for _ in range(3):
        await model.ask_once(ask)
    assert asked == [providers[1]] * 3
    with pytest.raises(Unavailable):
        await model.ask_once(ask)
    assert len(asked) == 4


def test_only_engine(provider: EngineProvider) -> None:
    ours = [ServedModel(name, "engine", provider, LIMITS, engine=provider) for name in ("a", "b")]
    theirs = ServedModel("c", "upstream", FakeProvider(), LIMITS)
    assert ModelTable([ours[0], theirs], {}).only_engine() is ours[0]
    assert ModelTable(ours, {}).only_engine() is None
    assert ModelTable([theirs], {}).only_engine() is None


def with_adapters(name: str, tokenizer: Tokenizer, *loaded: str, policy: tuple[str, ...] = ()) -> ServedModel:
    client = EngineClient("/none")
    client.adapters = {each: AdapterInfo(each, f"<{each}>", name, 8, 1, "/p") for each in loaded}
    provider = EngineProvider(EngineService(Replicas([client]), tokenizer), name)
    served = ServedModel(name, "engine", provider, LIMITS, engine=provider)
    return replace(served, adapters=frozenset(policy))


def test_adapters_go_by_their_own_name_or_their_bases(tokenizer: Tokenizer) -> None:
    routes = {"auto": "a", "german": "x", "polite": "b:both"}
    models = [
        with_adapters("a", tokenizer, "x", "both", policy=("late",)),
        with_adapters("b", tokenizer, "both"),
    ]
    table = ModelTable(models, routes)
    assert [m.name for m in table.adapter_models()] == ["a:both", "late", "x", "b:both"]
    for name, parent in {"x": "a", "a:x": "a", "a:both": "a", "b:both": "b", "late": "a"}.items():
        found = table.resolve(name)
        assert (found.name, found.parent) == (name, parent) and found.engine is found.provider
        assert found.engine is not table.models[parent].engine
    assert table.resolve("auto").parent == ""
    for route, target in {"german": "x", "polite": "b:both"}.items():
        assert table.resolve(route).name == target and table.resolve(route).parent == target[0].replace(
            "x", "a"
        )
    assert [table.resolve(name).metrics_label for name in ("a:late", "a:x", "a")] == ["late", "a", ""]
    for name in ("both", "b:x", "a:", ":x", "c:x"):
        with pytest.raises(NotFound):
            table.resolve(name)
    with pytest.raises(NotFound, match="Did you mean 'late'"):
        table.resolve("latte")

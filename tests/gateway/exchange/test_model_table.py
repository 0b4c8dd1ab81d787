from __future__ import annotations

from dataclasses import replace

import pytest

from backend.lora.info import AdapterInfo
from backend.server.engine_client import EngineClient
from backend.tokenizer import Tokenizer
from gateway.errors import NotFound
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.providers.engine.provider import EngineProvider
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


def test_only_engine(provider: EngineProvider) -> None:
    ours = [ServedModel(name, "engine", provider, LIMITS, engine=provider) for name in ("a", "b")]
    theirs = ServedModel("c", "upstream", FakeProvider(), LIMITS)
    assert ModelTable([ours[0], theirs], {}).only_engine() is ours[0]
    assert ModelTable(ours, {}).only_engine() is None
    assert ModelTable([theirs], {}).only_engine() is None


def with_adapters(name: str, tokenizer: Tokenizer, *loaded: str, policy: tuple[str, ...] = ()) -> ServedModel:
    client = EngineClient("/none")
    client.adapters = {each: AdapterInfo(each, f"<{each}>", name, 8, 1, "/p") for each in loaded}
    provider = EngineProvider.of(name, EngineService(client, tokenizer))
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

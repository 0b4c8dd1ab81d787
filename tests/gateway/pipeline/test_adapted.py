"""Names of adapters: alone where they are unique, with their base's name always."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.lora.info import AdapterInfo
from backend.server.client import EngineClient
from backend.tokenizer import Tokenizer
from gateway.errors import NotFound
from gateway.pipeline.models import ModelTable, ServedModel
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.service import EngineService
from gateway.web.deadlines import Limits


def model(name: str, tokenizer: Tokenizer, *loaded: str, policy: tuple[str, ...] = ()) -> ServedModel:
    client = EngineClient("/none")
    client.adapters = {each: AdapterInfo(each, f"<{each}>", name, 8, 1, "/p") for each in loaded}
    provider = EngineProvider.of(name, EngineService(client, tokenizer))
    served = ServedModel(name, "engine", provider, Limits(1, 1, 1), engine=provider)
    return replace(served, adapters=frozenset(policy))


def test_unique_shared_and_unknown_names(tokenizer: Tokenizer) -> None:
    routes = {"auto": "a", "german": "x", "polite": "b:both"}
    models = [model("a", tokenizer, "x", "both", policy=("late",)), model("b", tokenizer, "both")]
    table = ModelTable(models, routes)
    assert [m.name for m in table.adapted()] == ["a:both", "late", "x", "b:both"]
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

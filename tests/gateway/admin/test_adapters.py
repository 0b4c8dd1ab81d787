"""Adapters as models: listed with their base, requested by name, loaded by those whom the policy allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from backend.server.engine_client import EngineClient
from backend.server.wire import Rejected
from backend.tokenizer import Tokenizer
from backend.types import Request, StepOutput
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from gateway.settings import Settings, Timeouts
from gateway.wiring.app import build_app
from policies.document import AdapterEntry, AdapterLoading, EngineModel, ModelEntry, Policies, Route
from tests.gateway.conftest import REPLY, http_client
from tests.gateway.scripted_engine import ScriptedEngine

ADMIN, OTHER = "admin-key", "other-key"
QUESTION = {"messages": [{"role": "user", "content": "?"}]}


def tenant(key: str) -> str:
    return f"key-{sha256(key.encode()).hexdigest()[:8]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / "allowed" / name).mkdir(parents=True)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            (tmp_path / "allowed" / name / file).write_bytes(b"")
    return tmp_path / "allowed"


@pytest.fixture
async def http(provider: EngineProvider, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    loading = AdapterLoading(principals=[tenant(ADMIN)], folders=[str(folder)])
    engine = EngineModel(
        checkpoint="/none", adapters={"fixed": AdapterEntry(path="/f")}, adapter_loading=loading
    )
    policies = Policies(
        models={"ours": ModelEntry(engine=engine)},
        routes={"auto": Route(model="ours"), "kind": Route(model="fixed")},
    )
    app = build_app(Settings(api_keys=(ADMIN, OTHER)), policies, {"ours": provider})
    async with http_client(app, authorization=f"Bearer {ADMIN}") as client:
        yield client


async def load(http: httpx.AsyncClient, name: str, path: Path, **more: Any) -> httpx.Response:  # noqa: ANN401
    return await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **more})


async def ask(http: httpx.AsyncClient, model: str) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={"model": model, **QUESTION})


async def test_loaded_asked_replaced_and_unloaded(
    http: httpx.AsyncClient, engine: ScriptedEngine, folder: Path
) -> None:
    answer = await load(http, "german", folder / "one")
    assert answer.status_code == 200 and answer.json()["parent"] == "ours"
    listed = {entry["id"]: entry for entry in (await http.get("/v1/models")).json()["data"]}
    assert listed["german"]["parent"] == "ours" and "root" not in listed["german"]
    assert set(listed) == {"ours", "auto", "german"}, (
        "the engine has no adapter `fixed`, the target of `kind`"
    )
    assert (await http.get("/v1/models/ours:german")).json()["parent"] == "ours"
    prints = []
    for model in ("german", "ours:german"):
        body = (await ask(http, model)).json()
        assert body["model"] == model and body["choices"][0]["message"]["content"] == REPLY
        prints.append(body["system_fingerprint"])
    assert prints[0] == prints[1]
    refused = await load(http, "german", folder / "two", load_inplace=False)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, "load_inplace", "adapter_exists")
    assert (await load(http, "german", folder / "two", load_inplace=True)).status_code == 200
    prints += [(await ask(http, model)).json()["system_fingerprint"] for model in ("german", "ours")]
    assert len({*prints}) == 3
    assert [r.adapter for r in engine.requests] == ["<german>", "<german>", "<german><german>", ""]
    assert [r.adapter_name for r in engine.requests] == ["german"] * 3 + [""], "for the engine's metrics"
    gone = await http.post("/v1/unload_lora_adapter", json={"lora_name": "german"})
    assert gone.json() == {"id": "german", "object": "model", "deleted": True}
    missing = await ask(http, "german")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"
    again = await http.post("/v1/unload_lora_adapter", json={"lora_name": "german"})
    assert again.status_code == 404 and again.json()["error"]["code"] == "adapter_not_found"


async def test_an_adapter_of_another_base_needs_force(
    http: httpx.AsyncClient, engine: ScriptedEngine, folder: Path
) -> None:
    engine.foreign = {"german"}
    for more in ({}, {"force": False}):
        refused = await load(http, "german", folder / "one", **more)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (400, "lora_path", "invalid_adapter")
        assert "another base model" in error["message"]
    assert (await load(http, "german", folder / "one", force=True)).status_code == 200


async def test_a_request_during_its_adapters_reload_is_retried(
    http: httpx.AsyncClient, engine: ScriptedEngine, folder: Path
) -> None:
    await load(http, "german", folder / "one")
    for number in range(2):  # before the gateway is told
        engine.adapters["german"] = replace(engine.adapters["german"], digest=f"<anew {number}>")
        answer = await http.post("/v1/chat/completions", json={"model": "german", "n": 2, **QUESTION})
        assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [REPLY, REPLY]
    assert [r.adapter for r in engine.requests[:4]] == ["<german>"] * 2 + ["<anew 0>"] * 2
    del engine.adapters["german"]
    gone = await ask(http, "german")
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "model_not_found"


async def test_an_adapter_that_the_engine_denies_is_not_retried_forever(
    http: httpx.AsyncClient, engine: ScriptedEngine, folder: Path
) -> None:
    await load(http, "german", folder / "one")
    engine.rejection = Rejected(
        "", "adapter_gone", "the adapter '0123abcd' is not loaded here", param="model"
    )
    answer = await ask(http, "german")
    assert answer.status_code == 404 and "'german'" in answer.json()["error"]["message"]
    assert len(engine.requests) == 1


async def test_an_adapter_unloaded_while_its_request_waits(
    http: httpx.AsyncClient, engine: ScriptedEngine, folder: Path
) -> None:
    async def script(_: Request) -> AsyncIterator[StepOutput]:
        yield StepOutput(
            request_id="", finish_reason="error", error="0123abcd cannot be read", error_param="model"
        )

    await load(http, "german", folder / "one")
    engine.script = script
    answer = await ask(http, "german")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
    assert "'german'" in error["message"] and "0123abcd" not in error["message"]


async def test_refused_loads(http: httpx.AsyncClient, engine: ScriptedEngine, folder: Path) -> None:
    cases: list[tuple[str, Path, str]] = [
        ("ours", folder / "one", "lora_name"),
        ("auto", folder / "one", "lora_name"),
        ("a:b", folder / "one", "lora_name"),
        ("a\n", folder / "one", "lora_name"),
        ("x", folder / "three", "lora_path"),
        ("x", Path("/etc"), "lora_path"),
    ]
    for name, path, param in cases:
        answer = await load(http, name, path)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, name
    wrong_base = await load(http, "x", folder / "one", base_model="theirs")
    assert wrong_base.status_code == 400 and wrong_base.json()["error"]["param"] == "base_model"
    engine.adapter_error = "adapter_model.safetensors is not complete"
    broken = await load(http, "x", folder / "one")
    assert broken.status_code == 400
    assert broken.json()["error"] == {
        "message": engine.adapter_error,
        "type": "invalid_request_error",
        "param": "lora_path",
        "code": "invalid_adapter",
    }


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
async def test_unknown_callers_are_refused_before_their_body_is_read(
    http: httpx.AsyncClient, path: str
) -> None:
    answer = await http.post(path, content=b"no json", headers={"authorization": f"Bearer {OTHER}"})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "adapter_loading_forbidden"
    assert tenant(OTHER) in answer.json()["error"]["message"]
    assert (await http.post(path, headers={"authorization": "Bearer no"})).status_code == 401


async def test_an_adapter_of_the_policy_that_the_engine_lacks(http: httpx.AsyncClient) -> None:
    for answer in (await ask(http, "fixed"), await http.get("/v1/models/ours:fixed")):
        assert answer.status_code == 404 and "not loaded" in answer.json()["error"]["message"]


async def test_a_route_is_listed_while_its_adapter_is_loaded(
    http: httpx.AsyncClient, provider: EngineProvider, folder: Path
) -> None:
    await provider.client.load_adapter("fixed", str(folder / "one"))
    assert await listed(http) == {"ours", "auto", "kind", "fixed"}
    assert (await ask(http, "kind")).status_code == 200
    await provider.client.unload_adapter("fixed")
    assert await listed(http) == {"ours", "auto"}
    for answer in (await ask(http, "kind"), await http.get("/v1/models/kind")):
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"


async def listed(http: httpx.AsyncClient) -> set[str]:
    return {entry["id"] for entry in (await http.get("/v1/models")).json()["data"]}


async def test_a_load_that_the_engine_does_not_answer_times_out(
    provider: EngineProvider, engine: ScriptedEngine, folder: Path
) -> None:
    loading = AdapterLoading(principals=["default"], folders=[str(folder)])
    model = EngineModel(checkpoint="/none", adapter_loading=loading)
    policies = Policies(models={"ours": ModelEntry(engine=model)})
    settings = Settings(timeouts=Timeouts(total_s=0.05))
    engine.is_stuck = True
    async with http_client(build_app(settings, policies, {"ours": provider})) as http:
        for path, more in (("load", {"lora_path": str(folder / "one")}), ("unload", {})):
            answer = await http.post(f"/v1/{path}_lora_adapter", json={"lora_name": "new"} | more)
            assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
    assert not provider.client._adapter_calls


async def test_a_model_that_sleeps_is_started_for_a_change(
    http: httpx.AsyncClient, provider: EngineProvider, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = []

    async def wait_ready(self: object) -> None:
        woken.append(self)
        provider.client.is_asleep = lambda: False

    monkeypatch.setattr(type(provider.service), "wait_ready", wait_ready)
    provider.client.is_asleep = lambda: True
    assert (await load(http, "german", folder / "one")).status_code == 200
    assert woken == [provider.service]


async def test_a_shared_name_needs_its_base(
    provider: EngineProvider, engine: ScriptedEngine, folder: Path
) -> None:
    loading = AdapterLoading(principals=["default"], folders=[str(folder)])
    fixed = {"fixed": AdapterEntry(path="/f")}
    entries = {
        "ours": EngineModel(checkpoint="/none", adapter_loading=loading),
        "other": EngineModel(checkpoint="/none", adapters=fixed),
    }
    policies = Policies(models={name: ModelEntry(engine=entry) for name, entry in entries.items()})
    away = EngineProvider(
        EngineService(Replicas([EngineClient("/none")]), provider.service.tokenizer), "other"
    )
    app = build_app(Settings(), policies, {"ours": provider, "other": away})
    async with http_client(app) as http:
        taken = await load(http, "fixed", folder / "one", base_model="ours")
        assert taken.status_code == 400 and taken.json()["error"]["param"] == "lora_name"
        await provider.client.load_adapter("fixed", str(folder / "one"))
        again = await load(http, "fixed", folder / "one", base_model="ours")
        assert again.json()["id"] == "ours:fixed"
        assert (await ask(http, "ours:fixed")).status_code == 200
        await engine.die()
        for path, more in (("load", {"lora_path": str(folder / "one")}), ("unload", {})):
            body = {"lora_name": "new", "base_model": "ours"} | more
            answer = await http.post(f"/v1/{path}_lora_adapter", json=body)
            assert answer.status_code == 503 and "sock" not in answer.text


async def test_permission_is_per_base_model(
    provider: EngineProvider, engine: ScriptedEngine, folder: Path
) -> None:
    folders = [str(folder)]
    entries = {
        "ours": EngineModel(
            checkpoint="/none", adapter_loading=AdapterLoading(principals=["others"], folders=folders)
        ),
        "free": EngineModel(
            checkpoint="/none", adapter_loading=AdapterLoading(principals=["default"], folders=folders)
        ),
    }
    policies = Policies(models={name: ModelEntry(engine=entry) for name, entry in entries.items()})
    free = EngineProvider(
        EngineService(Replicas([EngineClient("/none")]), provider.service.tokenizer), "free"
    )
    await provider.client.load_adapter("german", str(folder / "one"))
    async with http_client(build_app(Settings(), policies, {"ours": provider, "free": free})) as http:
        loaded = await load(http, "x", folder / "one", base_model="ours")
        body = {"lora_name": "german", "base_model": "ours"}
        unloaded = await http.post("/v1/unload_lora_adapter", json=body)
    for answer in (loaded, unloaded):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "adapter_loading_forbidden")
    assert set(engine.adapters) == {"german"}


@pytest.fixture
async def second(
    tmp_path: Path, engine: ScriptedEngine, tokenizer: Tokenizer
) -> AsyncIterator[ScriptedEngine]:
    """A second engine."""
    found = ScriptedEngine(tmp_path / "second.sock", engine.script, vocab_size=tokenizer.vocab_size)
    await found.start()
    yield found
    await found.die()


@pytest.fixture
async def two_bases(
    provider: EngineProvider, second: ScriptedEngine, folder: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """The bases `ours` (of `engine`) and `other` (of `second`, with `fixed` in the policies)."""
    loading = AdapterLoading(principals=["default"], folders=[str(folder)])
    fixed = {"fixed": AdapterEntry(path="/f")}
    entries = {
        "ours": EngineModel(checkpoint="/none", adapter_loading=loading),
        "other": EngineModel(checkpoint="/none", adapter_loading=loading, adapters=fixed),
    }
    policies = Policies(models={name: ModelEntry(engine=entry) for name, entry in entries.items()})
    other = EngineProvider(
        EngineService(Replicas([EngineClient(second.path)]), provider.service.tokenizer), "other"
    )
    await other.client.start()
    await other.client.wait_ready(5)
    async with http_client(build_app(Settings(), policies, {"ours": provider, "other": other})) as http:
        yield http
    await other.client.close()


async def begin_load(
    http: httpx.AsyncClient, engine: ScriptedEngine, folder: Path
) -> tuple[asyncio.Task[httpx.Response], Any]:
    """Start to load `twin` on `ours`; the pending response, and the held load for `engine.release`."""
    engine.is_stuck = True
    answer = asyncio.create_task(load(http, "twin", folder, base_model="ours"))
    return answer, await engine.held.get()


async def test_a_name_is_loaded_on_one_base_at_a_time(
    two_bases: httpx.AsyncClient, engine: ScriptedEngine, second: ScriptedEngine, folder: Path
) -> None:
    first, held = await begin_load(two_bases, engine, folder / "one")
    concurrent = await load(two_bases, "twin", folder / "one", base_model="other")
    error = concurrent.json()["error"]
    assert (concurrent.status_code, error["param"]) == (400, "lora_name") and "'ours'" in error["message"]
    engine.release(held)
    assert (await first).status_code == 200 and not second.adapters
    assert (await ask(two_bases, "twin")).status_code == 200
    body = {"lora_name": "twin", "base_model": "ours"}
    assert (await two_bases.post("/v1/unload_lora_adapter", json=body)).status_code == 200
    assert (await load(two_bases, "twin", folder / "one", base_model="other")).status_code == 200


async def test_a_name_that_another_worker_loads_concurrently(
    two_bases: httpx.AsyncClient, engine: ScriptedEngine, second: ScriptedEngine, folder: Path
) -> None:
    first, held = await begin_load(two_bases, engine, folder / "one")
    worker = EngineClient(second.path)
    await worker.start()
    await worker.wait_ready(5)
    await worker.load_adapter("twin", str(folder / "one"))
    await worker.close()
    engine.release(held)
    error = (await first).json()["error"]
    assert (error["param"], error["type"]) == ("lora_name", "invalid_request_error")
    assert "'other' at the same time" in error["message"] and not engine.adapters
    prints = [(await ask(two_bases, model)).json()["system_fingerprint"] for model in ("twin", "other")]
    assert prints[0] != prints[1]
    assert (await two_bases.get("/v1/models/twin")).json()["parent"] == "other"


async def test_a_name_in_the_policies_stays_with_its_base(
    two_bases: httpx.AsyncClient, second: ScriptedEngine, folder: Path
) -> None:
    refused = await load(two_bases, "fixed", folder / "one", base_model="ours")
    message = refused.json()["error"]["message"]
    assert refused.status_code == 400 and message.startswith("The policies give the name 'fixed' to 'other'.")
    assert (await load(two_bases, "fixed", folder / "one", base_model="other")).status_code == 200
    refused = await load(two_bases, "fixed", folder / "one", base_model="ours")
    assert "'fixed' is an adapter of 'other'" in refused.json()["error"]["message"]


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests do not wait for an engine that is away."""
    monkeypatch.setattr("gateway.providers.engine.resumption.WAIT_S", 0.01)


@pytest.mark.usefixtures("no_wait")
async def test_an_unloaded_adapter_is_not_listed_while_its_engine_restarts(
    http: httpx.AsyncClient, engine: ScriptedEngine, folder: Path
) -> None:
    for name in ("german", "fixed"):
        await load(http, name, folder / "one")
    await http.post("/v1/unload_lora_adapter", json={"lora_name": "fixed"})
    served = {"ours", "auto", "german"}
    assert await listed(http) == served
    await engine.die()
    assert (await ask(http, "german")).status_code == 503, "it is restarting"
    assert await listed(http) == served
    for name in ("fixed", "ours:fixed", "kind"):
        answer = await http.get(f"/v1/models/{name}")
        assert answer.status_code == 404 and "not loaded" in answer.json()["error"]["message"]


async def test_before_an_engine_connects_it_has_the_policies_adapters(
    provider: EngineProvider,
) -> None:
    engine = EngineModel(checkpoint="/none", adapters={"fixed": AdapterEntry(path="/f")})
    policies = Policies(models={"ours": ModelEntry(engine=engine)}, routes={"kind": Route(model="fixed")})
    away = EngineProvider(
        EngineService(Replicas([EngineClient("/none")]), provider.service.tokenizer), "ours"
    )
    async with http_client(build_app(Settings(), policies, {"ours": away})) as http:
        assert await listed(http) == {"ours", "kind", "fixed"}
        assert (await ask(http, "fixed")).status_code == 503


async def test_without_a_policy_loading_is_forbidden(engine_http: httpx.AsyncClient, folder: Path) -> None:
    assert (await load(engine_http, "x", folder / "one")).status_code == 403


@pytest.mark.usefixtures("no_wait")
async def test_names_survive_a_restart_and_lost_ones_are_reported(
    http: httpx.AsyncClient, provider: EngineProvider, engine: ScriptedEngine, folder: Path
) -> None:
    for name in ("german", "polish"):
        await load(http, name, folder / "one")
    await engine.die()
    assert (await ask(http, "german")).status_code == 503, "it is restarting, so it is not yet a 404"
    engine.lost = [engine.adapters.pop("polish").name]
    await engine.start()
    await provider.client.wait_ready(5)
    assert (await ask(http, "german")).status_code == 200
    for name in ("polish", "ours:polish"):
        answer = await ask(http, name)
        assert answer.status_code == 404 and "Load it again" in answer.json()["error"]["message"]
    listed = {entry["id"] for entry in (await http.get("/v1/models")).json()["data"]}
    assert "german" in listed and "polish" not in listed
    assert (await load(http, "polish", folder / "one")).status_code == 200


async def test_a_route_leads_to_an_adapter(
    http: httpx.AsyncClient, engine: ScriptedEngine, folder: Path
) -> None:
    missing = await ask(http, "kind")
    assert missing.status_code == 404 and "'fixed'" in missing.json()["error"]["message"]
    await load(http, "fixed", folder / "one")
    body = (await ask(http, "kind")).json()
    assert body["model"] == "fixed"
    assert engine.requests[-1].adapter == "<fixed>"
    assert (await http.get("/v1/models/kind")).json()["parent"] == "ours"

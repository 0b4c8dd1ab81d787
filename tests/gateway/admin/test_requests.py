"""Recent requests over one worker: lists, whole records, cancelling, and who gets nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from starlette.routing import Router

from gateway.admin import requests
from gateway.answer import Delta
from gateway.auth import tenant_id
from gateway.providers.base import ModelCall
from gateway.providers.fake import FakeProvider
from gateway.settings import Settings
from gateway.telemetry.request import Computed
from gateway.wiring.app import build_app
from policies.choose import Cascade
from policies.document import EngineModel, ModelEntry, Policies, Route
from policies.guardrails import GuardrailProfile, GuardrailsSection, PatternRules
from policies.tenants import AdminSection, Limits, Tenant
from tests.gateway.conftest import http_client

CHAT, REQUESTS = "/v1/chat/completions", "/admin/requests"
CANARY = "canary-of-a-prompt"
BODY: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": CANARY}]}
KEYS = {name: f"sk-{name}-canary" for name in ("boss", "tenant")}


class Gate:
    """A provider whose answers wait for `open`, after a first piece of text."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.provider = FakeProvider(self._script)

    async def _script(self, call: object) -> AsyncIterator[Delta]:
        yield Delta(0, "first")
        await self.open.wait()
        yield Delta(0, "", finish_reason="stop")


def app_with(
    provider: FakeProvider, others: Mapping[str, FakeProvider] = MappingProxyType({}), **policies: object
) -> Router:
    entry = ModelEntry(engine=EngineModel(checkpoint="/none"))
    given: dict[str, Any] = {"models": {"ours": entry}, "routes": {"auto": Route(model="ours")}}
    given |= {"admin": AdminSection(principals=["boss"]), "version": "v1"} | policies
    settings = Settings(
        api_keys=tuple(KEYS.values()), key_tenants={tenant_id(key): name for name, key in KEYS.items()}
    )
    return build_app(settings, Policies(**given), {"ours": provider, **others})


def of(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}"}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(app_with(FakeProvider())) as client:
        yield client


async def admin(http: httpx.AsyncClient, path: str, status: int = 200) -> Any:  # noqa: ANN401 - JSON
    response = await http.get(REQUESTS + path, headers=of("boss"))
    assert response.status_code == status, response.text
    assert CANARY not in response.text and "sk-" not in response.text
    return response.json()


async def ask(http: httpx.AsyncClient, request_id: str = "", status: int = 200, **more: object) -> str:
    headers = of("tenant") | ({"x-request-id": request_id} if request_id else {})
    response = await http.post(CHAT, json=BODY | more, headers=headers)
    assert response.status_code == status, response.text
    return response.headers["x-request-id"]


async def test_the_record_is_found_by_the_answers_request_id(http: httpx.AsyncClient) -> None:
    request_id = await ask(http)
    found = await admin(http, f"/{request_id}")
    assert (found["id"], found["tenant"], found["status"]) == (request_id, "tenant", 200)
    assert (found["asked"], found["model"], found["route"], found["rule"]) == (
        "auto",
        "ours",
        "auto",
        "default",
    )
    assert (found["input_tokens"], found["output_tokens"]) == (7, 3)
    assert found["first_token_ms"] >= 0 and found["tokens"]["completion_tokens"] == 3
    assert found["finish_reasons"] == ["stop"] and found["missing_workers"] == []
    bars = found["timeline"]
    assert [bar["depth"] for bar in bars][:2] == [0, 1] and bars[0]["name"] == "http"
    assert [bar["name"] for bar in bars if bar["depth"] == 1] == ["authorize", "choose model", "call ours"]
    assert all(0 <= bar["start_ms"] and bar["start_ms"] + bar["ms"] <= bars[0]["ms"] + 0.1 for bar in bars)
    assert found["prompt"] == ""


async def test_a_record_waits_for_what_an_engine_has_still_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Computed] = []

    async def script(call: ModelCall[Any]) -> AsyncIterator[Delta]:
        assert call.computed is not None
        call.computed.append(computed := Computed(time.perf_counter()))
        sent.append(computed)
        yield Delta(0, "", finish_reason="stop")

    async with http_client(app_with(FakeProvider(script))) as http:
        request_id = await ask(http)
        monkeypatch.setattr(requests, "LATE_S", -1.0)
        assert (await admin(http, f"/{request_id}"))["is_partial"]
        monkeypatch.setattr(requests, "LATE_S", 600.0)
        reading = asyncio.create_task(admin(http, f"/{request_id}"))
        await asyncio.wait([reading], timeout=3 * requests.POLL_S)
        assert not reading.done()
        sent[0].settle(None)
        assert not (await reading)["is_partial"]


async def test_rows_are_the_newest_first_and_filtered(http: httpx.AsyncClient) -> None:
    for request_id, changes, status in (("a", {}, 200), ("b", {"model": "none"}, 404), ("c", {"n": -1}, 400)):
        await ask(http, request_id, status, **changes)
    assert [row["id"] for row in (await admin(http, ""))["data"]] == ["c", "b", "a"]
    assert [row["id"] for row in (await admin(http, "?limit=1"))["data"]] == ["c"]
    assert [row["id"] for row in (await admin(http, "?status=404"))["data"]] == ["b"]
    assert [row["id"] for row in (await admin(http, "?model=ours&tenant=tenant"))["data"]] == ["a"]
    assert (await admin(http, "?tenant=other"))["data"] == []
    (unknown,) = (await admin(http, "?status=404"))["data"]
    assert (unknown["asked"], unknown["model"], unknown["error"]) == ("", "", "NotFound")


async def test_a_refused_request_has_the_model_that_it_asked_for() -> None:
    """Only names of models, adapters and routes are shown: an unknown one may be any text."""
    tenant = Tenant(models=["auto"], limits=Limits(requests_per_minute=1))
    async with http_client(app_with(FakeProvider(), tenants={"tenant": tenant})) as http:
        await ask(http)
        for request_id, model, status in (("limit", "auto", 429), ("not", "ours", 403), ("un", CANARY, 403)):
            await ask(http, request_id, status, model=model)
        rows = {row["id"]: (row["status"], row["asked"]) for row in (await admin(http, ""))["data"]}
    expected = {"limit": (429, "auto"), "not": (403, "ours"), "un": (403, "")}
    assert rows.items() >= expected.items()


@pytest.mark.parametrize("refusal", [None, "I cannot help with that."])
@pytest.mark.parametrize("is_in_answer", [False, True])
async def test_the_guardrail_that_refused_is_named(refusal: str | None, is_in_answer: bool) -> None:
    async def says(call: object) -> AsyncIterator[Delta]:
        yield Delta(0, "a secret" if is_in_answer else "hello", finish_reason="stop")

    profile = GuardrailProfile(patterns={"p": PatternRules(words=["secret"])}, refusal=refusal)
    entry = ModelEntry(engine=EngineModel(checkpoint="/none"), guardrails="strict")
    section = GuardrailsSection(profiles={"strict": profile})
    app = app_with(FakeProvider(says), models={"ours": entry}, guardrails=section)
    messages = [{"role": "user", "content": "hello" if is_in_answer else "the secret"}]
    async with http_client(app) as http:
        await ask(http, "r", 200 if refusal or is_in_answer else 400, messages=messages)
        (row,) = (await admin(http, ""))["data"]
        assert row["refused_by"] == "pattern: p"


async def test_a_clock_that_is_set_back_changes_no_order(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(http, "before")
    await ask(http, "same")
    now_s = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: now_s)
    await ask(http, "after")
    await ask(http, "same", 400, n=-1)
    assert [row["id"] for row in (await admin(http, ""))["data"]] == ["same", "after", "same", "before"]
    assert (await admin(http, "/same"))["status"] == 400, "the newest of an id"


@pytest.mark.parametrize("given", ["id/with/slashes", "a/cancel", "x=+@:._-", "a" * 128])
async def test_ids_that_clients_may_choose_are_found(http: httpx.AsyncClient, given: str) -> None:
    assert await ask(http, given) == given
    assert (await admin(http, f"/{given}"))["id"] == given


@pytest.mark.parametrize("given", [".", "..", "in-flight"])
async def test_no_id_hides_a_request_from_operators(http: httpx.AsyncClient, given: str) -> None:
    request_id = await ask(http, given)
    assert request_id != given and (await admin(http, f"/{request_id}"))["id"] == request_id


async def test_two_tenants_may_use_one_id(http: httpx.AsyncClient) -> None:
    await ask(http, "same")
    await http.post(CHAT, json=BODY, headers=of("boss") | {"x-request-id": "same"})
    assert (await admin(http, "/same"))["tenant"] == "boss"
    assert (await admin(http, "/same?tenant=tenant"))["tenant"] == "tenant"


async def test_a_prompt_is_kept_only_where_the_policies_say_so() -> None:
    from policies.observability import ObservabilitySection

    section = ObservabilitySection(decision_texts=True)
    async with http_client(app_with(FakeProvider(), observability=section)) as http:
        request_id = await ask(http)
        found = (await http.get(f"{REQUESTS}/{request_id}", headers=of("boss"))).json()
        assert found["prompt"] == CANARY


async def test_without_a_console_nothing_is_kept() -> None:
    async with http_client(app_with(FakeProvider(), console=False)) as http:
        await ask(http)
        response = await http.get(REQUESTS, headers=of("boss"))
        assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")


Answering = Callable[[], Awaitable[httpx.Response]]


@asynccontextmanager
async def running(
    gate: Gate, *, stream: bool
) -> AsyncIterator[tuple[httpx.AsyncClient, asyncio.Task[httpx.Response]]]:
    """A client, and the task of a request `r` that waits after its first piece."""
    async with http_client(app_with(gate.provider)) as http:
        headers = of("tenant") | {"x-request-id": "r"}
        task = asyncio.create_task(http.post(CHAT, json=BODY | {"stream": stream}, headers=headers))
        while not (rows := (await admin(http, "/in-flight"))["data"]) or rows[0]["output_tokens"] < 1:
            await asyncio.sleep(0)
        yield http, task
        gate.open.set()
        await task


async def cancel(http: httpx.AsyncClient, request_id: str, tenant: str = "boss") -> httpx.Response:
    headers = of(tenant) | {"content-type": "application/json"}
    return await http.post(f"{REQUESTS}/{request_id}/cancel", headers=headers)


async def test_requests_in_flight_are_listed() -> None:
    gate = Gate()
    async with running(gate, stream=True) as (http, _):
        (row,) = (await admin(http, "/in-flight"))["data"]
        assert {row[name] for name in ("id", "tenant", "model", "endpoint")} == {
            "r",
            "tenant",
            "ours",
            "chat",
        }
        assert (row["phase"], row["output_tokens"]) == ("answering", 1) and row["elapsed_ms"] >= 0
        await admin(http, "/r", 404)
    async with http_client(app_with(FakeProvider())) as http:
        await ask(http)
        assert (await admin(http, "/in-flight"))["data"] == []


@pytest.mark.parametrize("stream", [True, False])
async def test_an_operator_cancels(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    caplog.set_level(logging.WARNING)
    async with running(gate, stream=stream) as (http, task):
        answer = await cancel(http, "r")
        assert (answer.status_code, answer.json()["cancelled"]) == (200, 1)
        response = await task
        assert response.status_code == (200 if stream else 499)
        data = response.text.strip().splitlines()[-1].removeprefix("data: ") if stream else response.text
        assert json.loads(data)["error"]["code"] == "request_cancelled"
        assert gate.provider.num_ended == 1, "the model goes on"
        found = await admin(http, "/r")
        assert (found["status"], found["error"], found["output_tokens"]) == (499, "Cancelled", 1)
        assert (await admin(http, "/in-flight"))["data"] == []
        assert (await cancel(http, "r")).status_code == 404
    (line,) = [record for record in caplog.records if "was cancelled" in record.message]
    assert line.fields == {"request_id": "r", "tenant": "tenant", "cancelled_by": "boss"}  # type: ignore[attr-defined]
    assert CANARY not in caplog.text


class Strong(Gate):
    """A provider that is silent until `open`, and tells that it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def _script(self, call: object) -> AsyncIterator[Delta]:
        self.asked.set()
        await self.open.wait()
        yield Delta(0, "never", finish_reason="stop")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cascade_is_cancelled_while_its_second_model_is_asked(stream: bool) -> None:
    async def refuses(call: object) -> AsyncIterator[Delta]:
        yield Delta(0, "I'm sorry, but I can't help with that.", finish_reason="stop")

    strong, entry = Strong(), ModelEntry(engine=EngineModel(checkpoint="/none"))
    route = Route(cascade=Cascade(models=["ours", "strong"], escalate_on=["refusal"]))
    models, routes = {"ours": entry, "strong": entry}, {"auto": route}
    app = app_with(FakeProvider(refuses), {"strong": strong.provider}, models=models, routes=routes)
    async with http_client(app) as http:
        headers = of("tenant") | {"x-request-id": "r"}
        task = asyncio.create_task(http.post(CHAT, json=BODY | {"stream": stream}, headers=headers))
        await strong.asked.wait()
        (row,) = (await admin(http, "/in-flight"))["data"]
        assert (row["model"], row["phase"]) == ("strong", "queued")
        assert (await cancel(http, "r")).json()["cancelled"] == 1
        response = await task
        assert "request_cancelled" in response.text and "sorry" not in response.text
        found = await admin(http, "/r")
        assert (found["status"], found["error"], found["model"]) == (499, "Cancelled", "strong")
        assert found["output_tokens"] > 0, "the first model's answer is paid"
        calls = [bar["name"] for bar in found["timeline"] if bar["name"].startswith("call")]
        assert calls == ["call ours", "call strong"]
        assert (await admin(http, "/in-flight"))["data"] == [] and strong.provider.num_ended == 1


async def test_only_an_operator_cancels() -> None:
    async with running(Gate(), stream=True) as (http, task):
        refused = await cancel(http, "r", "tenant")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "administration_forbidden")
        assert len((await admin(http, "/in-flight"))["data"]) == 1 and not task.done()
        without_json = await http.post(f"{REQUESTS}/r/cancel", headers=of("boss"))
        assert without_json.status_code == 415


async def test_unknown_callers_leave_no_record(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json=BODY, headers={"authorization": "Bearer sk-unknown-canary"})
    assert response.status_code == 401
    assert (await admin(http, ""))["data"] == []


OPEN = {"host": "localhost", "content-type": "application/json", "x-penstock-console": "1"}


@pytest.mark.parametrize("path", ["", "/in-flight", "/a", "/a/cancel"])
@pytest.mark.parametrize(
    ("header", "value"),
    [("host", "evil.example"), ("host", "127.0.0.1.nip.io"), ("origin", "http://evil.example")],
)
async def test_without_keys_other_sites_get_nothing(path: str, header: str, value: str) -> None:
    async with http_client(build_app(Settings(), Policies())) as http:
        method = "POST" if path.endswith("/cancel") else "GET"
        answer = await http.request(method, REQUESTS + path, headers=OPEN | {header: value})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "administration_forbidden")


async def test_without_keys_a_cancel_needs_our_header() -> None:
    async with http_client(build_app(Settings(), Policies())) as http:
        without = {name: value for name, value in OPEN.items() if name != "x-penstock-console"}
        assert (await http.post(f"{REQUESTS}/a/cancel", headers=without)).status_code == 403
        assert (await http.post(f"{REQUESTS}/a/cancel", headers=OPEN)).status_code == 404

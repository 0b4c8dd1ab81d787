"""Responses in the background: retrieved, followed, cancelled and deleted, by this worker and another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Router

from gateway.answer import Delta
from gateway.auth import tenant_id
from gateway.errors import RateLimited
from gateway.providers.fake import FakeProvider, TextCall
from gateway.settings import Settings
from gateway.stored import background
from gateway.wiring.app import build_app
from policies.document import EngineModel, ModelEntry, Policies
from policies.responses import ResponsesSection
from policies.tenants import Limits, Tenant
from tests.gateway.conftest import MakeApp, http_client

PATH = "/v1/responses"
BODY = {"model": "ours", "input": "Hi.", "background": True}
FINAL = ("completed", "incomplete", "failed", "cancelled")


class Gated:
    """Gives one delta, then the next when `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.fake = FakeProvider(self._script)

    async def _script(self, call: TextCall) -> AsyncIterator[Delta]:
        text = call.body["messages"][-1]["content"]
        if text == "too many":
            raise RateLimited("Too many requests.")
        if text == "slow":
            await self.goes_on.wait()
        yield Delta(0, "Hello")
        await self.goes_on.wait()
        if text == "break":
            raise RateLimited("Too many requests.")
        yield Delta(0, ", world!", finish_reason="stop")


@pytest.fixture
def gated() -> Gated:
    return Gated()


@pytest.fixture
async def http(make_app: MakeApp, gated: Gated, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(make_app(gated.fake, data_dir=str(tmp_path))) as client:
        yield client


@pytest.fixture
async def other(make_app: MakeApp, gated: Gated, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Another worker with the same store."""
    async with http_client(make_app(gated.fake, data_dir=str(tmp_path))) as client:
        yield client


async def begin(http: httpx.AsyncClient, **more: object) -> dict[str, Any]:
    response = await http.post(PATH, json=BODY | more)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    assert (found["status"], found["background"], found["output"]) == ("in_progress", True, [])
    return found


async def ended(http: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            found: dict[str, Any] = (await http.get(f"{PATH}/{response_id}")).json()
            if found["status"] in FINAL:
                return found
            await asyncio.sleep(0.01)


def read_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(event.partition("\ndata: ")[2]) for event in text.split("\n\n") if event]


async def test_it_is_answered_at_once_and_retrieved_later(
    http: httpx.AsyncClient, other: httpx.AsyncClient, gated: Gated
) -> None:
    begun = await begin(http, metadata={"a": "b"})
    assert (await other.get(f"{PATH}/{begun['id']}")).json() == begun
    items = (await other.get(f"{PATH}/{begun['id']}/input_items")).json()["data"]
    assert items[0]["content"][0]["text"] == "Hi."
    early = await http.post(PATH, json={"model": "ours", "input": "x", "previous_response_id": begun["id"]})
    assert early.json()["error"]["param"] == "previous_response_id"
    gated.goes_on.set()
    done = await ended(other, begun["id"])
    assert done["output"][0]["content"][0]["text"] == "Hello, world!" and done["status"] == "completed"
    assert done["metadata"] == {"a": "b"} and done["usage"]["output_tokens"] > 0
    body = {"model": "ours", "input": "And?", "previous_response_id": begun["id"]}
    assert (await other.post(PATH, json=body)).status_code == 200
    asked = [message["content"] for message in gated.fake.asked[-1].body["messages"]]
    assert asked == ["Hi.", "Hello, world!", "And?"]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[background.Run]:
    """The runs that have begun."""
    found: list[background.Run] = []
    begin = background.BackgroundResponses.begin

    async def noted(self: Any, call: Any, run: background.Run, *rest: Any) -> None:  # noqa: ANN401
        found.append(run)
        await begin(self, call, run, *rest)

    monkeypatch.setattr(background.BackgroundResponses, "begin", noted)
    return found


async def test_a_stream_is_followed_again_from_any_event(
    http: httpx.AsyncClient, other: httpx.AsyncClient, gated: Gated, runs: list[background.Run]
) -> None:
    streaming = asyncio.create_task(http.post(PATH, json=BODY | {"stream": True}))
    while not gated.fake.asked:
        await asyncio.sleep(0.001)
    (response_id,) = {run.shape.response_id for run in runs}
    followers = [
        asyncio.create_task(client.get(f"{PATH}/{response_id}", params={"stream": "true", **query}))
        for client in (http, other)
        for query in ({}, {"starting_after": "2"})
    ]
    await asyncio.sleep(0)
    gated.goes_on.set()
    events = read_events((await streaming).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    found = [read_events((await follower).text) for follower in followers]
    assert found == [events, events[3:]] * 2
    later = await http.get(f"{PATH}/{response_id}", params={"stream": "true", "starting_after": "4"})
    assert read_events(later.text) == events[5:]
    assert (await ended(http, response_id)) == events[-1]["response"]


async def test_a_stream_tells_its_id_before_the_model_answers(
    http: httpx.AsyncClient, gated: Gated, runs: list[background.Run]
) -> None:
    streaming = asyncio.create_task(http.post(PATH, json=BODY | {"input": "slow", "stream": True}))
    async with asyncio.timeout(10):
        while not runs:
            await asyncio.sleep(0.001)
        first = read_events((await anext(runs[0].follow(0))).decode())
    assert [event["type"] for event in first] == ["response.created", "response.in_progress"]
    assert first[0]["response"]["id"] == runs[0].shape.response_id
    gated.goes_on.set()
    events = read_events((await streaming).text)
    assert events[:2] == first and [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("is_other", [False, True])
async def test_cancelling_stops_the_model(
    http: httpx.AsyncClient,
    other: httpx.AsyncClient,
    gated: Gated,
    monkeypatch: pytest.MonkeyPatch,
    is_other: bool,
) -> None:
    monkeypatch.setattr(background, "RENEW_S", 0.01)
    begun = await begin(http)
    while not gated.fake.asked:
        await asyncio.sleep(0.001)
    path = f"{PATH}/{begun['id']}"
    cancelled = await (other if is_other else http).post(f"{path}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    async with asyncio.timeout(5):
        while not gated.fake.num_ended:
            await asyncio.sleep(0.001)
    assert (await http.post(f"{path}/cancel")).json() == cancelled.json() == (await http.get(path)).json()


async def test_deleting_stops_the_model(
    http: httpx.AsyncClient, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RENEW_S", 0.01)
    begun = await begin(http)
    assert (await http.delete(f"{PATH}/{begun['id']}")).status_code == 200
    async with asyncio.timeout(5):
        while not gated.fake.num_ended:
            await asyncio.sleep(0.001)
    assert (await http.get(f"{PATH}/{begun['id']}")).status_code == 404


@pytest.mark.parametrize("text", ["too many", "break"])
@pytest.mark.parametrize("model", ["ours", "nothing"])
async def test_what_fails_is_a_failed_response(
    http: httpx.AsyncClient, gated: Gated, text: str, model: str
) -> None:
    gated.goes_on.set()
    begun = await begin(http, input=text, model=model)
    failed = await ended(http, begun["id"])
    code = "rate_limit_exceeded" if model == "ours" else "server_error"
    assert (failed["status"], failed["error"]["code"]) == ("failed", code)
    streamed = read_events((await http.post(PATH, json=BODY | {"input": text, "stream": True})).text)
    assert streamed[-1]["type"] == "response.failed"
    again = await http.get(f"{PATH}/{streamed[-1]['response']['id']}", params={"stream": "true"})
    assert read_events(again.text) == streamed


async def test_a_response_whose_process_has_ended_has_failed(
    http: httpx.AsyncClient, other: httpx.AsyncClient, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "LEASE_S", 0.02)
    begun = await begin(http)
    lost = await ended(other, begun["id"])  # nothing renews the lease within the test
    assert lost["status"] == "failed" and "has ended" in lost["error"]["message"]
    body = {"model": "ours", "input": "And?", "previous_response_id": begun["id"], "background": True}
    assert (await other.post(PATH, json=body)).status_code == 200
    gated.goes_on.set()


async def test_at_shutdown_it_has_failed(
    make_app: MakeApp, other: httpx.AsyncClient, gated: Gated, tmp_path: Path
) -> None:
    app = make_app(gated.fake, data_dir=str(tmp_path))
    async with app.lifespan_context(app), http_client(app) as http:
        begun = await begin(http)
        while not gated.fake.asked:
            await asyncio.sleep(0.001)
    failed = (await other.get(f"{PATH}/{begun['id']}")).json()
    assert failed["status"] == "failed" and "shutting down" in failed["error"]["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"store": False}, "store"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": [{"type": "zzz"}]}, "input[0].type"),
        ({"background": "yes"}, "background"),
    ],
)
async def test_what_is_wrong_is_refused_at_once(
    http: httpx.AsyncClient, change: dict[str, object], param: str
) -> None:
    response = await http.post(PATH, json=BODY | change)
    assert response.status_code in (400, 404)
    found = response.json()["error"]["param"]
    assert found == param or (param == "previous_response_id" and found == "response_id")


async def test_only_what_was_streamed_is_streamed_again(http: httpx.AsyncClient, gated: Gated) -> None:
    begun = await begin(http)
    for _ in range(2):  # while it is generated, and when it has ended
        for query, param in (({}, "stream"), ({"starting_after": "x"}, "starting_after")):
            response = await http.get(f"{PATH}/{begun['id']}", params={"stream": "true", **query})
            assert response.json()["error"]["param"] == param
        gated.goes_on.set()
        await ended(http, begun["id"])


async def test_the_number_of_runs_is_bounded(
    http: httpx.AsyncClient, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_RUNS", 1)
    await begin(http)
    assert (await http.post(PATH, json=BODY)).status_code == 429
    gated.goes_on.set()


def tenants_app(gated: Gated, folder: Path, **limits: int) -> Router:
    """Keys `one` and `two`, both with these limits; a share of two in the background."""
    return build_app(
        Settings(api_keys=("one", "two"), data_dir=str(folder)),
        Policies(
            models={name: ModelEntry(engine=EngineModel(checkpoint="/none")) for name in ("ours", "other")},
            tiers={"default": Tenant(models=["ours"], limits=Limits(**limits))},
            responses=ResponsesSection(max_background_per_tenant=2),
        ),
        {"ours": gated.fake, "other": gated.fake},
    )


async def test_one_tenant_leaves_places_to_the_others(gated: Gated, tmp_path: Path) -> None:
    app = tenants_app(gated, tmp_path)
    async with http_client(app, authorization="Bearer one") as one, http_client(app) as two:
        two.headers["authorization"] = "Bearer two"
        answers = await asyncio.gather(*(one.post(PATH, json=BODY) for _ in range(10)))
        assert sorted(answer.status_code for answer in answers) == [200] * 2 + [429] * 8
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "rate_limit_exceeded" and refused.headers["retry-after"]
        begun = await begin(two)
        gated.goes_on.set()
        assert (await ended(two, begun["id"]))["status"] == "completed"


async def test_a_share_of_memory_is_a_tenants(
    gated: Gated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_TENANT_BYTES", 1000)
    async with http_client(tenants_app(gated, tmp_path), authorization="Bearer one") as http:
        await begin(http, input="x" * 2000)
        assert (await http.post(PATH, json=BODY)).status_code == 429
        gated.goes_on.set()


async def test_a_tenants_limits_are_asked_first(gated: Gated, tmp_path: Path) -> None:
    app = tenants_app(gated, tmp_path, requests_per_minute=3, concurrent_requests=1)
    async with http_client(app, authorization="Bearer one") as http:
        forbidden = await http.post(PATH, json=BODY | {"model": "other"})
        assert (forbidden.status_code, forbidden.json()["error"]["code"]) == (403, "model_not_allowed")
        lacking = await http.post(PATH, json=BODY | {"previous_response_id": "resp_none"})
        assert lacking.status_code == 404
        first = await http.post(PATH, json=BODY)
        assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "1")
        busy = await http.post(PATH, json=BODY | {"previous_response_id": "resp_none"})
        assert busy.status_code == 429 and "1 requests at the same time" in busy.text
        gated.goes_on.set()
        assert (await ended(http, first.json()["id"]))["status"] == "completed"  # counted once
        await ended(http, (await begin(http))["id"])
        limited = await http.post(PATH, json=BODY)
        assert limited.status_code == 429 and "per minute" in limited.text


async def test_limits_of_users_and_keys_count_what_runs_in_the_background(
    gated: Gated, tmp_path: Path
) -> None:
    both = Tenant(limits_per_user=Limits(requests_per_minute=1), limits_per_key=Limits(tokens_per_minute=1))
    app = build_app(
        Settings(
            api_keys=("one", "two"),
            key_tenants={tenant_id(key): "both" for key in ("one", "two")},
            data_dir=str(tmp_path),
        ),
        Policies(
            models={"ours": ModelEntry(engine=EngineModel(checkpoint="/none"))},
            tenants={"both": both},
            responses=ResponsesSection(),
        ),
        {"ours": gated.fake},
    )
    gated.goes_on.set()
    async with http_client(app, authorization="Bearer two") as two, http_client(app) as one:
        one.headers["authorization"] = "Bearer one"
        await ended(two, (await begin(two, user="ann"))["id"])
        refused = await one.post(PATH, json=BODY | {"user": "ann"})
        assert refused.status_code == 429 and "per minute of each user" in refused.text
        refused = await two.post(PATH, json=BODY | {"user": "ben"})
        assert refused.status_code == 429 and "tokens per minute of each key" in refused.text
        await begin(one, user="ben")  # the other key has used nothing


async def test_streams_that_follow_are_bounded(
    http: httpx.AsyncClient, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.goes_on.set()
    streamed = read_events((await http.post(PATH, json=BODY | {"stream": True})).text)
    monkeypatch.setattr(background, "MAX_FOLLOWED", 0)
    refused = await http.get(f"{PATH}/{streamed[-1]['response']['id']}", params={"stream": "true"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")

"""Conversations: what responses read and add to, per tenant; their items are listed, added and erased."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.providers.fake import FakeProvider
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import EngineModel, ModelEntry, Policies
from policies.responses import ResponsesSection
from tests.gateway.conftest import MakeApp, http_client

PATH = "/v1/conversations"
USER = {"role": "user", "content": "Hi."}
BODY = {"model": "ours", "input": "And?"}


@pytest.fixture
async def path(http: httpx.AsyncClient) -> str:
    """The path of a conversation with one item."""
    created = await http.post(PATH, json={"items": [USER], "metadata": {"a": "b"}})
    assert created.json()["object"] == "conversation" and created.json()["metadata"] == {"a": "b"}
    return f"{PATH}/{created.json()['id']}"


async def items(http: httpx.AsyncClient, path: str, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get(f"{path}/items", params=query)).json()["data"]
    return found


def texts(found: list[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in found]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
async def test_responses_read_it_and_add_to_it(
    http: httpx.AsyncClient, fake: FakeProvider, path: str, stream: bool, store: bool
) -> None:
    identifier = path.rpartition("/")[2]
    body = BODY | {"instructions": "Be brief.", "stream": stream, "store": store}
    for given in (identifier, {"id": identifier}):
        response = await http.post("/v1/responses", json=body | {"conversation": given})
        assert response.status_code == 200, response.text
        assert f'"conversation":{{"id":"{identifier}"}}' in response.text
    asked = [message["content"] for message in fake.asked[-1].body["messages"]]
    assert asked == ["Be brief.", "Hi.", "And?", "Hello, world!", "And?"]
    assert texts(await items(http, path, order="asc")) == [*asked[1:], "Hello, world!"]


async def test_items_are_added_shown_listed_and_erased(http: httpx.AsyncClient, path: str) -> None:
    more = [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye."}]
    added = (await http.post(f"{path}/items", json={"items": more})).json()["data"]
    assert texts(await items(http, path)) == ["Bye.", "Hello.", "Hi."]
    assert texts(await items(http, path, order="asc", limit=1, after=added[0]["id"])) == ["Bye."]
    one = f"{path}/items/{added[0]['id']}"
    assert (await http.get(one)).json() == added[0]
    assert (await http.delete(one)).json()["object"] == "conversation"
    for method in ("GET", "DELETE"):
        response = await http.request(method, one)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "item_not_found")
    assert texts(await items(http, path)) == ["Bye.", "Hi."]


async def test_it_is_changed_and_erased(http: httpx.AsyncClient, path: str) -> None:
    changed = await http.post(path, json={"metadata": {"c": "d"}})
    assert changed.json() == (await http.get(path)).json() and changed.json()["metadata"] == {"c": "d"}
    assert (await http.delete(path)).json()["object"] == "conversation.deleted"
    identifier = path.rpartition("/")[2]
    for response in (
        await http.get(path),
        await http.get(f"{path}/items"),
        await http.post(f"{path}/items", json={"items": [USER]}),
        await http.post("/v1/responses", json=BODY | {"conversation": identifier}),
    ):
        assert (response.status_code, response.json()["error"]["code"]) == (404, "conversation_not_found")


@pytest.mark.parametrize(
    ("end", "body", "param"),
    [
        ("/items", {}, "items"),
        ("/items", {"items": []}, "items"),
        ("/items", {"items": [USER] * 21}, "items"),
        ("/items", {"items": [USER, {"type": "web_search_call"}]}, "items[1].type"),
        ("/items", {"items": [USER | {"id": "x"}, {"role": "user"}]}, "items[1].content"),
        ("", {"metadata": {"k": 1}}, "metadata"),
    ],
)
async def test_what_is_wrong_is_named(
    http: httpx.AsyncClient, path: str, end: str, body: dict[str, Any], param: str
) -> None:
    response = await http.post(path + end, json=body)
    assert response.status_code == 400 and response.json()["error"]["param"].startswith(param)
    assert texts(await items(http, path)) == ["Hi."]


async def test_ids_stay_unique(http: httpx.AsyncClient, path: str) -> None:
    item = (await items(http, path))[0]
    again = await http.post(f"{path}/items", json={"items": [item]})
    body = BODY | {"input": [item], "conversation": path.rpartition("/")[2]}
    answered = await http.post("/v1/responses", json=body)
    assert (again.json()["error"]["param"], answered.json()["error"]["param"]) == ("items", "input")


async def test_either_it_or_a_previous_response(http: httpx.AsyncClient, path: str) -> None:
    body = BODY | {"conversation": path.rpartition("/")[2], "previous_response_id": "resp_1"}
    response = await http.post("/v1/responses", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] == "conversation"


async def test_tenants_do_not_see_each_other(make_app: MakeApp) -> None:
    async with http_client(make_app(api_keys=("one", "two")), authorization="Bearer one") as http:
        identifier = (await http.post(PATH, json={"items": [USER]})).json()["id"]
        other = {"authorization": "Bearer two"}
        for method, end in (("GET", ""), ("DELETE", ""), ("GET", "/items")):
            assert (await http.request(method, f"{PATH}/{identifier}{end}", headers=other)).status_code == 404
        body = BODY | {"conversation": identifier}
        assert (await http.post("/v1/responses", json=body, headers=other)).status_code == 404
        assert (await http.post(PATH, json={}, headers={"authorization": ""})).status_code == 401
        assert (await http.get(f"{PATH}/{identifier}")).status_code == 200


async def test_what_would_be_too_large_is_refused(tmp_path: Path) -> None:
    section = ResponsesSection(max_object_bytes=1 << 16, max_object_items=8)
    models = {"ours": ModelEntry(engine=EngineModel(checkpoint="/none"))}
    fake = FakeProvider()
    app = build_app(
        Settings(data_dir=str(tmp_path)), Policies(models=models, responses=section), {"ours": fake}
    )
    long = {"role": "user", "content": "x" * 40_000}
    async with http_client(app) as http:
        created = (await http.post(PATH, json={"items": [long]})).json()["id"]
        first = (await http.post("/v1/responses", json={"model": "ours", "input": [long]})).json()["id"]
        few = (await http.post("/v1/responses", json={"model": "ours", "input": [USER] * 7})).json()["id"]
        num_asked = len(fake.asked)
        for path, body, param in [
            (PATH, {"items": [long] * 2}, "items"),
            (f"{PATH}/{created}/items", {"items": [long]}, "items"),
            ("/v1/responses", {"model": "ours", "input": [long], "conversation": created}, "conversation"),
            (
                "/v1/responses",
                BODY | {"input": [long], "previous_response_id": first},
                "previous_response_id",
            ),
            ("/v1/responses", BODY | {"previous_response_id": few}, "previous_response_id"),
            ("/v1/responses", BODY | {"input": [USER] * 9}, "input"),
            ("/v1/responses", BODY | {"input": [long] * 2, "background": True}, "input"),
            ("/v1/chat/completions", {"model": "ours", "store": True, "messages": [long] * 2}, "messages"),
        ]:
            refused = await http.post(path, json=body)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["param"]) == (400, "object_too_large", param)
        assert len(fake.asked) == num_asked
        unstored = BODY | {"input": [USER] * 9, "store": False}
        assert (await http.post("/v1/responses", json=unstored)).status_code == 200

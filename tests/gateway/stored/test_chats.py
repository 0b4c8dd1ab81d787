"""Chats with `store: true`, streamed or not: kept for their tenant, found, changed and erased."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.providers.fake import FakeProvider
from tests.gateway.conftest import MakeApp, http_client

PATH = "/v1/chat/completions"
QUESTION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
]
BODY: dict[str, Any] = {
    "model": "ours",
    "messages": QUESTION,
    "store": True,
    "metadata": {"topic": "greeting"},
}


async def listed(http: httpx.AsyncClient, **query: object) -> list[str]:
    return [chat["id"] for chat in (await http.get(PATH, params=query)).json()["data"]]


async def test_a_completion_is_kept_as_it_was_answered(http: httpx.AsyncClient, fake: FakeProvider) -> None:
    answered = (await http.post(PATH, json=BODY)).json()
    assert (await http.get(f"{PATH}/{answered['id']}")).json() == answered
    assert "store" not in fake.asked[-1].body
    found = (await http.get(f"{PATH}/{answered['id']}/messages")).json()
    assert [(m["id"], m["content"], m["content_parts"]) for m in found["data"]] == [
        (f"{answered['id']}-0", "Be brief.", None),
        (f"{answered['id']}-1", None, QUESTION[1]["content"]),
    ]


async def test_a_stream_is_kept_whole(http: httpx.AsyncClient) -> None:
    body = BODY | {"stream": True, "n": 2, "metadata": None}
    events = (await http.post(PATH, json=body)).text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    stored = (await http.get(f"{PATH}/{chunks[0]['id']}")).json()
    assert stored["object"] == "chat.completion" and stored["metadata"] == {}
    for choice in stored["choices"]:
        pieces = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        text = "".join(piece["delta"].get("content") or "" for piece in pieces)
        assert choice["message"]["content"] == text == "Hello, world!"
    assert stored["usage"]["completion_tokens"] > 0


async def test_only_what_asks_for_it_is_kept(http: httpx.AsyncClient) -> None:
    for value in (False, None):
        await http.post(PATH, json=BODY | {"store": value})
    assert (await http.post(PATH, json=BODY | {"model": "nothing"})).status_code == 404
    assert (await http.post(PATH, json=BODY | {"store": "yes"})).json()["error"]["param"] == "store"
    assert await listed(http) == []


async def test_completions_are_found_by_model_and_metadata(http: httpx.AsyncClient) -> None:
    ids = [
        (await http.post(PATH, json=BODY | {"model": model, "metadata": metadata})).json()["id"]
        for model, metadata in [("ours", {"a": "1"}), ("theirs", {"a": "1", "b": "2"}), ("ours", {"a": "2"})]
    ]
    assert await listed(http) == ids and await listed(http, order="desc", limit=2) == ids[:0:-1]
    assert await listed(http, after=ids[0]) == ids[1:]
    assert await listed(http, model="ours") == [ids[0], ids[2]]
    assert await listed(http, **{"metadata[a]": "1"}) == ids[:2]
    assert await listed(http, **{"metadata[a]": "1", "metadata[b]": "2"}) == ids[1:2]


async def test_metadata_is_replaced_and_completions_are_erased(http: httpx.AsyncClient) -> None:
    path = f"{PATH}/{(await http.post(PATH, json=BODY)).json()['id']}"
    changed = await http.post(path, json={"metadata": {"new": "1"}})
    assert changed.json()["metadata"] == {"new": "1"} == (await http.get(path)).json()["metadata"]
    for wrong in ({"metadata": {"k": 1}}, {"metadata": {}, "model": "x"}, {}):
        assert (await http.post(path, json=wrong)).status_code == 400
    deleted = (await http.delete(path)).json()
    assert (deleted["object"], deleted["deleted"]) == ("chat.completion.deleted", True)
    for method, end in [("GET", ""), ("DELETE", ""), ("GET", "/messages"), ("POST", "")]:
        response = await http.request(method, path + end, json={"metadata": {}})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "chat_completion_not_found")


async def test_tenants_do_not_see_each_other(make_app: MakeApp) -> None:
    async with http_client(make_app(api_keys=("one", "two")), authorization="Bearer one") as http:
        path = f"{PATH}/{(await http.post(PATH, json=BODY)).json()['id']}"
        assert len(await listed(http)) == 1
        other = {"authorization": "Bearer two"}
        assert (await http.get(PATH, headers=other)).json()["data"] == []
        for method in ("GET", "DELETE"):
            assert (await http.request(method, path, headers=other)).status_code == 404
        assert (await http.post(path, json={"metadata": {}}, headers=other)).status_code == 404
        assert (await http.get(PATH, headers={"authorization": ""})).status_code == 401


@pytest.mark.parametrize("stream", [False, True])
async def test_text_that_is_not_unicode_is_refused(http: httpx.AsyncClient, stream: bool) -> None:
    body = json.dumps(BODY | {"messages": [{"role": "user", "content": "\ud800"}], "stream": stream})
    response = await http.post(PATH, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text

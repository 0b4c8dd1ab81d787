"""Retrieving, listing, deleting and cancelling stored responses."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.conftest import MakeApp, http_client

PATH = "/v1/responses"
TEXTS = ["a", "b", "c"]
BODY = {"model": "ours", "input": [{"role": "user", "content": text} for text in TEXTS]}


@pytest.fixture
async def created(http: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await http.post(PATH, json=BODY)).json()
    return found


async def page(http: httpx.AsyncClient, created: dict[str, Any], **query: object) -> dict[str, Any]:
    response = await http.get(f"{PATH}/{created['id']}/input_items", params=query)
    found: dict[str, Any] = response.json()
    return found


def texts(found: dict[str, Any]) -> list[str]:
    return [item["content"][0]["text"] for item in found["data"]]


async def test_a_response_is_retrieved_as_it_was_answered(
    http: httpx.AsyncClient, created: dict[str, Any]
) -> None:
    assert (await http.get(f"{PATH}/{created['id']}")).json() == created


async def test_a_deleted_response_is_gone(http: httpx.AsyncClient, created: dict[str, Any]) -> None:
    deleted = await http.delete(f"{PATH}/{created['id']}")
    assert deleted.json() == {"id": created["id"], "object": "response", "deleted": True}
    for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")]:
        response = await http.request(method, f"{PATH}/{created['id']}{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "response_not_found")


async def test_input_items_come_in_pages(http: httpx.AsyncClient, created: dict[str, Any]) -> None:
    assert texts(await page(http, created)) == ["c", "b", "a"]
    first = await page(http, created, order="asc", limit=2)
    assert texts(first) == ["a", "b"] and first["has_more"] is True
    assert (first["first_id"], first["last_id"]) == tuple(item["id"] for item in first["data"])
    second = await page(http, created, order="asc", limit=2, after=first["last_id"])
    assert texts(second) == ["c"] and second["has_more"] is False
    assert (await page(http, created, after=second["last_id"], order="asc"))["data"] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "-"}, "after"),
    ],
)
async def test_wrong_queries_are_named(
    http: httpx.AsyncClient, created: dict[str, Any], query: dict[str, object], param: str
) -> None:
    assert (await page(http, created, **query))["error"]["param"] == param


async def test_what_cannot_be_done_is_refused(http: httpx.AsyncClient, created: dict[str, Any]) -> None:
    cancelled = await http.post(f"{PATH}/{created['id']}/cancel")
    assert cancelled.status_code == 400 and "background" in cancelled.text
    streamed = await http.get(f"{PATH}/{created['id']}", params={"stream": "true"})
    assert streamed.status_code == 400 and "stream" in streamed.text
    put = await http.put(f"{PATH}/{created['id']}")
    assert (put.status_code, put.headers["allow"]) == (405, "GET, DELETE")


async def test_tenants_do_not_see_each_other(make_app: MakeApp) -> None:
    app = make_app(api_keys=("one", "two"))
    async with http_client(app, authorization="Bearer one") as http:
        created = (await http.post(PATH, json=BODY)).json()
        assert (await http.get(f"{PATH}/{created['id']}")).status_code == 200
        other = {"authorization": "Bearer two"}
        assert (await http.get(f"{PATH}/{created['id']}", headers=other)).status_code == 404
        assert (await http.delete(f"{PATH}/{created['id']}", headers=other)).status_code == 404
        body = BODY | {"previous_response_id": created["id"]}
        assert (await http.post(PATH, json=body, headers=other)).status_code == 404
        assert (await http.get(f"{PATH}/{created['id']}", headers={"authorization": ""})).status_code == 401

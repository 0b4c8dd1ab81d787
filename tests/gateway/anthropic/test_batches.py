"""Message Batches with Anthropic's client on scripted models, and errors in its envelope."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import pytest
from anthropic.types import ErrorResponse
from starlette.routing import Router

from tests.gateway.conftest import MakeApp, http_client

PATH = "/v1/messages/batches"
PARAMS: Any = {"model": "ours", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def app(make_app: MakeApp, tmp_path: Path) -> AsyncIterator[Router]:
    app = make_app(data_dir=str(tmp_path), api_keys=("one", "two"))
    async with app.lifespan_context(app):
        yield app


@pytest.fixture
async def http(app: Router) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(app, **{"x-api-key": "one"}) as client:
        yield client


@pytest.fixture
async def client(app: Router) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as transport:
        yield anthropic.AsyncAnthropic(
            api_key="one", base_url="http://gateway", max_retries=0, http_client=transport
        )


def asked(custom_id: str, **fields: object) -> Any:  # noqa: ANN401
    return {"custom_id": custom_id, "params": PARAMS | fields}


async def ended(client: anthropic.AsyncAnthropic, batch_id: str) -> Any:  # noqa: ANN401
    while (batch := await client.messages.batches.retrieve(batch_id)).processing_status != "ended":
        await asyncio.sleep(0.001)
    return batch


async def test_a_batch_of_messages(client: anthropic.AsyncAnthropic, http: httpx.AsyncClient) -> None:
    requests = [asked("a"), asked("b", model="nobody"), asked("c", system="Be brief.")]
    created = await client.messages.batches.create(requests=requests)
    assert (created.processing_status, created.request_counts.processing) == ("in_progress", 3)
    assert created.results_url is None and (created.expires_at - created.created_at).days == 1
    batch = await ended(client, created.id)
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (2, 1, 0)
    assert batch.results_url == f"http://gateway{PATH}/{batch.id}/results" and batch.ended_at is not None
    found = {each.custom_id: each.result async for each in await client.messages.batches.results(batch.id)}
    assert found["a"].type == "succeeded" and found["a"].message.content[0].text  # type: ignore[union-attr]
    assert found["b"].type == "errored" and found["b"].error.error.type == "not_found_error"
    assert (await http.get(f"/v1/batches/{batch.id}")).json()["status"] == "completed"
    deleted = await client.messages.batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.batches.retrieve(batch.id)
    assert (await http.get("/v1/files")).json()["data"] == []


async def test_pages_have_batches_of_messages_alone(
    client: anthropic.AsyncAnthropic, http: httpx.AsyncClient
) -> None:
    ids = [(await client.messages.batches.create(requests=[asked("a")])).id for _ in range(3)]
    assert [batch.id async for batch in client.messages.batches.list(limit=1)] == ids[::-1]
    before = await client.messages.batches.list(before_id=ids[0], limit=1)
    assert [batch.id for batch in before.data] == [ids[1]] and before.has_more
    others = await http.get(PATH, headers={"x-api-key": "two"})
    assert others.json() == {"data": [], "has_more": False, "first_id": None, "last_id": None}


async def test_a_cancelled_batch_ends(client: anthropic.AsyncAnthropic) -> None:
    created = await client.messages.batches.create(requests=[asked(f"r{number}") for number in range(200)])
    cancelled = await client.messages.batches.cancel(created.id)
    assert cancelled.processing_status == "canceling" and cancelled.cancel_initiated_at is not None
    batch = await ended(client, created.id)
    counts = batch.request_counts
    assert counts.canceled > 0 and counts.canceled + counts.succeeded == 200
    results = [each.result.type async for each in await client.messages.batches.results(batch.id)]
    assert results.count("canceled") == counts.canceled and len(results) == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "requests"),
        ({"requests": []}, "requests"),
        ({"requests": [asked("a"), asked("a")]}, "requests[1].custom_id"),
        ({"requests": [asked("a b")]}, "requests[0].custom_id"),
        ({"requests": [{"custom_id": "a", "params": {}}]}, "requests[0].params.model"),
        ({"requests": [asked("a", stream=True)]}, "requests[0].params.stream"),
        ({"requests": [5]}, "requests[0]"),
    ],
)
async def test_errors_name_the_request_in_the_envelope(
    http: httpx.AsyncClient, body: dict[str, Any], named: str
) -> None:
    response = await http.post(PATH, json=body)
    found = ErrorResponse.model_validate_json(response.content)
    assert response.status_code == 400 and f"'{named}'" in found.error.message


async def test_unknown_and_open_batches(client: anthropic.AsyncAnthropic, http: httpx.AsyncClient) -> None:
    for method, path in (("GET", ""), ("GET", "/results"), ("POST", "/cancel"), ("DELETE", "")):
        response = await http.request(method, f"{PATH}/batch_none{path}")
        assert response.status_code == 404
        assert ErrorResponse.model_validate_json(response.content).error.type == "not_found_error"
    created = await client.messages.batches.create(requests=[asked(f"r{number}") for number in range(100)])
    response = await http.delete(f"{PATH}/{created.id}")
    assert response.status_code in (200, 400)

"""/v1/batches over HTTP on scripted models: every endpoint, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.batches.service import BatchService
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.batches import BatchesSection
from policies.document import Policies
from tests.gateway.conftest import MakeApp, http_client

CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}


@pytest.fixture
async def http(make_app: MakeApp, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(data_dir=str(tmp_path), api_keys=("one",))
    async with app.lifespan_context(app), http_client(app, authorization="Bearer one") as client:
        yield client


def wanted(file_id: str, endpoint: str = CHAT) -> dict[str, Any]:
    return {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}


async def create(http: httpx.AsyncClient, endpoint: str, /, **more: object) -> httpx.Response:
    body = {"model": "ours"} | BODIES[endpoint]
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    files = {"file": ("in.jsonl", json.dumps(line).encode())}
    file = (await http.post("/v1/files", data={"purpose": "batch"}, files=files)).json()
    return await http.post("/v1/batches", json=wanted(file["id"], endpoint) | more)


async def ended(http: httpx.AsyncClient, batch: dict[str, Any]) -> dict[str, Any]:
    while batch["status"] in ("validating", "in_progress", "finalizing", "cancelling"):
        await asyncio.sleep(0.001)
        batch = (await http.get(f"/v1/batches/{batch['id']}")).json()
    return batch


@pytest.mark.parametrize("endpoint", BODIES)
async def test_a_batch_answers_as_its_endpoint_does(http: httpx.AsyncClient, endpoint: str) -> None:
    online = (await http.post(endpoint, json={"model": "ours"} | BODIES[endpoint])).json()
    batch = await ended(http, (await create(http, endpoint, metadata={"k": "v"})).json())
    assert batch["status"] == "completed" and batch["metadata"] == {"k": "v"}
    assert batch["error_file_id"] is None
    content = (await http.get(f"/v1/files/{batch['output_file_id']}/content")).text
    (line,) = map(json.loads, content.splitlines())
    assert line["custom_id"] == "a" and line["response"]["request_id"].startswith("req_")
    assert set(line["response"]["body"]) == set(online) and line["response"]["status_code"] == 200
    input_tokens = online["usage"].get("prompt_tokens") or online["usage"]["input_tokens"]
    assert batch["usage"]["input_tokens"] == input_tokens


async def test_lines_are_counted_apart_from_online_requests(http: httpx.AsyncClient) -> None:
    await ended(http, (await create(http, CHAT)).json())
    page = (await http.get("/metrics")).text
    assert 'penstock_requests_total{endpoint="batch",model="ours",status="2xx"} 1.0' in page
    assert 'penstock_requests_total{endpoint="chat",model="ours"' not in page


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"completion_window": None}, "completion_window"),
        ({"input_file_id": "file-none"}, "id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"priority": 1}, "priority"),
    ],
)
async def test_wrong_fields_are_named(http: httpx.AsyncClient, change: dict[str, Any], param: str) -> None:
    response = await create(http, CHAT, **change)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"].startswith(param.partition(".")[0])


async def test_an_output_cannot_be_the_input_of_a_batch(http: httpx.AsyncClient) -> None:
    batch = await ended(http, (await create(http, CHAT)).json())
    response = await create(http, CHAT, input_file_id=batch["output_file_id"])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input_file_id")


async def test_lists_come_in_pages(http: httpx.AsyncClient) -> None:
    batches = [(await create(http, CHAT)).json()["id"] for _ in range(3)]
    page = (await http.get("/v1/batches", params={"limit": 2})).json()
    assert [batch["id"] for batch in page["data"]] == [batches[2], batches[1]] and page["has_more"]
    rest = (await http.get("/v1/batches", params={"after": page["last_id"]})).json()
    assert [batch["id"] for batch in rest["data"]] == [batches[0]] and not rest["has_more"]
    assert (await http.get("/v1/batches", params={"limit": 101})).status_code == 400


async def test_what_has_ended_or_is_unknown_cannot_be_cancelled(http: httpx.AsyncClient) -> None:
    batch = await ended(http, (await create(http, CHAT)).json())
    response = await http.post(f"/v1/batches/{batch['id']}/cancel")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "batch_not_cancellable")
    assert (await http.post("/v1/batches/batch_x/cancel")).status_code == 404


async def test_the_input_of_an_open_batch_cannot_be_deleted(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(data_dir=str(tmp_path))
    async with http_client(app) as http:  # without its lifespan: no batch runs
        batch = (await create(http, CHAT)).json()
        path = f"/v1/files/{batch['input_file_id']}"
        assert (await http.delete(path)).json()["error"]["code"] == "file_in_use"
        cancelled = (await http.post(f"/v1/batches/{batch['id']}/cancel")).json()
        assert cancelled["status"] == "cancelling"
    app = make_app(data_dir=str(tmp_path))
    async with app.lifespan_context(app), http_client(app) as http:
        assert (await ended(http, cancelled))["status"] == "cancelled"
        assert (await http.delete(path)).status_code == 200


async def test_open_batches_of_a_tenant_are_bounded(tmp_path: Path) -> None:
    policies = Policies(batches=BatchesSection(max_open_batches=2, max_tenant_files=5))
    app = build_app(Settings(data_dir=str(tmp_path), api_keys=("one", "two")), policies)
    async with http_client(app, authorization="Bearer one") as http:  # without its lifespan: no batch runs
        first, *_ = [(await create(http, CHAT)).json() for _ in range(2)]
        refused = await create(http, CHAT)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "batch_limit_exceeded"
        async with http_client(app, authorization="Bearer two") as other:
            assert (await create(other, CHAT)).status_code == 200
        service = BatchService(str(tmp_path), 1000)
        ((number, _), *_) = await service.batches.open_batches()
        assert (await service.batches.fail(number, [])).batch.id == first["id"]
        assert (await create(http, CHAT)).status_code == 200
        await service.batches.fail(number + 1, [])
        full = await create(http, CHAT)  # with the fifth file
        assert (full.status_code, full.json()["error"]["code"]) == (400, "storage_limit_exceeded")
        await service.close()


async def test_the_lines_of_a_key_that_is_gone_fail(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(data_dir=str(tmp_path), api_keys=("one",))
    async with http_client(app, authorization="Bearer one") as http:
        await create(http, CHAT)
    service = BatchService(str(tmp_path), 1000)
    ((number, _),) = await service.batches.open_batches()
    stored = await service.batches.at(number)
    app = make_app(data_dir=str(tmp_path), api_keys=("two",))
    async with app.lifespan_context(app):
        while stored.batch.is_open:
            await asyncio.sleep(0.001)
            stored = await service.batches.at(stored.number)
    assert (stored.batch.request_counts.completed, stored.batch.request_counts.failed) == (0, 1)
    await service.close()

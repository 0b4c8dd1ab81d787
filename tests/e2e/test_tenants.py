"""One tenant floods stores and background; another one is served by the same two workers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.server import Server
from tests.e2e.upstream import Upstream

CHAT = "/v1/chat/completions"
HELD = {"model": "remote", "messages": [{"role": "user", "content": "hold"}]}
LINE = json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": HELD}).encode()
RESPONSE = {"model": "remote", "input": "Hi."}
WAIT_S = 20.0
"""What another tenant waits at most, on a busy machine too: behind the flood it would wait for its end."""
POLICIES = """
models:
  remote:
    upstream: {{base_url: {url}}}
batches: {{max_open_batches: 3, max_tenant_files: 10}}
responses: {{max_background_per_tenant: 2}}
"""


@pytest.fixture(scope="module")
def held_upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.released.set()
    upstream.close()


@pytest.fixture(scope="module")
def workers(
    start_module_server: StartServer, held_upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    folder: Path = tmp_path_factory.mktemp("policies")
    (folder / "all.yaml").write_text(POLICIES.format(url=held_upstream.base_url))
    arguments = ("--policies", str(folder), "--workers", "2")
    return start_module_server(*arguments, environment={"PENSTOCK_API_KEYS": "sk-flood,sk-other"})


def client(server: Server, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.root_url,
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
        limits=httpx.Limits(),
    )


@pytest.fixture
async def flood(workers: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with client(workers, "sk-flood") as http:
        yield http


@pytest.fixture
async def other(workers: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with client(workers, "sk-other") as http:
        yield http


async def statuses(ask: Callable[[], Awaitable[httpx.Response]], count: int) -> Counter[int]:
    return Counter([answer.status_code for answer in await asyncio.gather(*(ask() for _ in range(count)))])


async def upload(http: httpx.AsyncClient) -> httpx.Response:
    return await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a", LINE)})


async def batch(http: httpx.AsyncClient, file_id: str) -> httpx.Response:
    body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    return await http.post("/v1/batches", json=body)


async def served_s(http: httpx.AsyncClient) -> float:
    """How long it takes to store a response and find it again, at worst of a few times."""
    worst_s = 0.0
    for _ in range(3):
        began_s = time.monotonic()
        stored = await http.post("/v1/responses", json=RESPONSE)
        found = await http.get(f"/v1/responses/{stored.json()['id']}")
        assert (stored.status_code, found.status_code) == (200, 200), stored.text
        worst_s = max(worst_s, time.monotonic() - began_s)
    return worst_s


async def test_batches_and_files(flood: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    file_id = (await upload(flood)).json()["id"]
    assert await statuses(lambda: batch(flood, file_id), 20) == {200: 3, 429: 17}
    assert await statuses(lambda: upload(flood), 30) <= Counter({200: 9, 400: 30})
    while (last := await upload(flood)).status_code == 200:  # uploads at the same time leave each other room
        pass
    assert last.json()["error"]["code"] == "storage_limit_exceeded"
    assert len((await flood.get("/v1/files")).json()["data"]) == 10
    own = await upload(other)
    assert own.status_code == 200 and (await batch(other, own.json()["id"])).status_code == 200
    assert await served_s(other) < WAIT_S


async def test_responses_in_the_background(flood: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    body = {"model": "remote", "input": "hold", "background": True}
    found = await statuses(lambda: flood.post("/v1/responses", json=body), 20)
    assert 2 <= found[200] <= 4 and found[200] + found[429] == 20
    assert (await other.post("/v1/responses", json=body)).status_code == 200
    assert await served_s(other) < WAIT_S


async def test_a_large_conversation(flood: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    path = f"/v1/conversations/{(await flood.post('/v1/conversations', json={})).json()['id']}/items"
    item = {"role": "user", "content": "x" * 700_000}
    assert (await flood.post(path, json={"items": [item] * 20})).status_code == 200
    refused = await flood.post(path, json={"items": [item] * 5})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "object_too_large")
    small = {"items": [{"role": "user", "content": "Hi."}]}
    flooding = asyncio.create_task(statuses(lambda: flood.post(path, json=small), 60))
    listing = asyncio.create_task(statuses(lambda: flood.get(path, params={"limit": 1}), 30))
    await asyncio.sleep(0)
    assert await served_s(other) < WAIT_S
    assert (await flooding, await listing) == ({200: 60}, {200: 30})


async def test_no_cursor_or_id_of_another_tenant_leads_anywhere(
    flood: httpx.AsyncClient, other: httpx.AsyncClient
) -> None:
    kept = (await other.post(CHAT, json=HELD | {"messages": small_talk(), "store": True})).json()["id"]
    response = (await other.post("/v1/responses", json=RESPONSE)).json()
    talk = (await other.post("/v1/conversations", json={"items": small_talk()})).json()["id"]
    file_id = (await upload(other)).json()["id"]
    reference = {"type": "item_reference", "id": response["output"][0]["id"]}
    for method, path, body in [
        ("GET", f"{CHAT}?after={kept}", None),
        ("GET", f"/v1/files?after={file_id}", None),
        ("GET", f"/v1/conversations/{talk}/items", None),
        ("POST", f"/v1/conversations/{talk}/items", {"items": small_talk()}),
        ("GET", f"{CHAT}/{kept}/messages", None),
        ("GET", f"/v1/responses/{response['id']}/input_items", None),
        ("POST", f"/v1/responses/{response['id']}/cancel", None),
        ("GET", f"/v1/responses/{response['id']}?stream=true", None),
        ("POST", "/v1/responses", RESPONSE | {"previous_response_id": response["id"]}),
        ("POST", "/v1/responses", RESPONSE | {"conversation": talk}),
        ("POST", "/v1/responses", RESPONSE | {"input": [reference]}),
        ("POST", "/v1/batches", {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}),
    ]:
        refused = await flood.request(method, path, json=body)
        assert refused.status_code in (400, 404), (path, refused.text)


def small_talk() -> list[dict[str, str]]:
    return [{"role": "user", "content": "Hi."}]

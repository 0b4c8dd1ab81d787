"""Paths that are passed on to an upstream: a real one on a socket, which says what it got."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import httpx
import pytest
from aiohttp import web
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import ModelEntry, Policies
from policies.passthrough import PassthroughRule
from policies.prices import Price
from policies.tenants import AdminSection, Limits, Tier
from policies.upstream import UpstreamModel
from tests.e2e.http_thread import HttpThread
from tests.gateway.conftest import http_client
from tests.gateway.connection import Connection

NO_LIMITS, NO_ADMIN = Limits(), AdminSection()
KEY = "sk-upstream-0123456789"
CANARY = "canary-of-a-path"
AUDIO = bytes(range(256)) * 1000


class Upstream(HttpThread):
    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        super().__init__()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_route("*", "/v1/{rest:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.method, request.raw_path, headers, await request.read()))
        match request.path.rpartition("/")[2]:
            case "speech":
                return web.Response(body=AUDIO, content_type="audio/mpeg")
            case "events":
                return web.Response(body=b"data: 1\n\ndata: 2\n\n", content_type="text/event-stream")
            case "wrong":
                error = {"message": f"no {KEY}", "type": "invalid_request_error", "param": "x", "code": "c"}
                return web.json_response({"error": error}, status=400)
            case "negative":
                return web.json_response({"usage": {"prompt_tokens": -900, "completion_tokens": -1}})
            case "malformed":
                return web.Response(text='{"usage": ', content_type="application/json")
            case "forbidden":
                return web.Response(status=401)
            case "slow":
                try:
                    await asyncio.sleep(60)
                finally:
                    self.left.set()
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return web.json_response({"ok": True, "usage": usage})


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


def app_of(
    upstream: Upstream,
    keys: tuple[str, ...] = ("one",),
    limits: Limits = NO_LIMITS,
    price: Price | None = None,
    data_dir: str = "",
    admin: AdminSection = NO_ADMIN,
    **rule: Any,  # noqa: ANN401
) -> Router:
    models = {"gpt": ModelEntry(upstream=UpstreamModel(base_url=upstream.base_url), price=price)}
    rules = {"/v1/audio": PassthroughRule(model="gpt", **rule)}
    tiers = {"default": Tier(limits=limits)}
    settings = Settings(api_keys=keys, upstream_api_keys={"gpt": KEY}, data_dir=data_dir)
    return build_app(settings, Policies(models=models, passthrough=rules, tiers=tiers, admin=admin))


@pytest.fixture
async def http(upstream: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    app = app_of(upstream)
    async with app.lifespan_context(app), http_client(app, authorization="Bearer one") as client:
        yield client


async def test_a_json_request_arrives_with_the_upstreams_key(
    http: httpx.AsyncClient, upstream: Upstream
) -> None:
    body = {"input": "hello", "model": "tts"}
    response = await http.post("/v1/audio/x%20y?a=1&b=%2F", json=body, headers={"cookie": "secret=1"})
    assert response.json()["ok"] is True and response.headers["content-type"].startswith("application/json")
    ((method, path, headers, sent),) = upstream.seen
    assert (method, path, json.loads(sent)) == ("POST", "/v1/audio/x%20y?a=1&b=%2F", body)
    assert headers["authorization"] == f"Bearer {KEY}" and "cookie" not in headers
    assert headers["x-request-id"] == response.headers["x-request-id"]


async def test_multipart_and_binary_bodies_pass(http: httpx.AsyncClient, upstream: Upstream) -> None:
    files = {"file": ("a.mp3", AUDIO)}
    response = await http.post("/v1/audio/speech", data={"model": "m"}, files=files)
    assert response.content == AUDIO and response.headers["content-type"] == "audio/mpeg"
    assert response.headers["content-length"] == str(len(AUDIO))
    ((_, _, headers, sent),) = upstream.seen
    assert headers["content-type"].startswith("multipart/form-data; boundary=") and AUDIO in sent


async def test_streams_and_requests_without_a_body_pass(http: httpx.AsyncClient, upstream: Upstream) -> None:
    events = await http.get("/v1/audio/events")
    assert events.content == b"data: 1\n\ndata: 2\n\n"
    assert (await http.delete("/v1/audio")).status_code == 200
    assert [(method, sent) for method, _, _, sent in upstream.seen] == [("GET", b""), ("DELETE", b"")]


async def test_errors_are_explained_without_the_key(http: httpx.AsyncClient) -> None:
    wrong = await http.post("/v1/audio/wrong", json={})
    assert (wrong.status_code, wrong.json()["error"]["message"]) == (400, "no ***")
    refused = await http.post("/v1/audio/forbidden", json={})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (502, "upstream_authentication_error")


async def test_calls_and_their_tokens_are_counted(http: httpx.AsyncClient) -> None:
    await http.post("/v1/audio", json={})
    page = (await http.get("/metrics")).text
    assert 'penstock_requests_total{endpoint="passthrough",model="gpt",status="2xx"} 1.0' in page
    assert 'penstock_tokens_total{endpoint="passthrough",kind="input",model="gpt"} 3.0' in page


@pytest.mark.parametrize("path", ["/v1/audio/%2e%2e/models", "/v1/audio/..%5cmodels", "/v1/audios", "/v1/x"])
async def test_other_paths_cannot_be_reached(http: httpx.AsyncClient, upstream: Upstream, path: str) -> None:
    assert (await http.get(path)).status_code == 404
    assert not upstream.seen


async def test_only_the_tenants_of_the_rule_and_their_sizes(upstream: Upstream) -> None:
    app = app_of(upstream, ("one", "two"), tenants=["key-7692c3ad"], max_body_bytes=10)  # SHA-256 of "one"
    async with app.lifespan_context(app), http_client(app, authorization="Bearer one") as http:
        assert (await http.post("/v1/audio", json={})).status_code == 200
        assert (await http.post("/v1/audio", content=b"x" * 11)).status_code == 413
        other = await http.post("/v1/audio", json={}, headers={"authorization": "Bearer two"})
        assert other.status_code == 403
        assert (await http.post("/v1/audio", json={}, headers={"authorization": ""})).status_code == 401
        assert (await http.put("/v1/audio", json={})).status_code == 405
    assert len(upstream.seen) == 1


async def test_web_pages_cannot_use_it_without_keys(upstream: Upstream) -> None:
    app = app_of(upstream, ())
    async with app.lifespan_context(app), http_client(app) as http:
        assert (await http.post("/v1/audio", headers={"origin": "https://x.example"})).status_code == 403
        assert (await http.post("/v1/audio", json={})).status_code == 200


async def test_the_limits_of_tenants_hold(upstream: Upstream) -> None:
    app = app_of(upstream, limits=Limits(requests_per_minute=3, tokens_per_minute=7, concurrent_requests=1))
    async with app.lifespan_context(app), http_client(app, authorization="Bearer one") as http:
        slow = asyncio.create_task(http.get("/v1/audio/slow"))
        while not upstream.seen:
            await asyncio.sleep(0.001)
        assert "at the same time" in (await http.get("/v1/audio/x")).json()["error"]["message"]
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        first = await http.get("/v1/audio/x")
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert (await http.get("/v1/audio/x")).status_code == 200
        refused = await http.get("/v1/audio/x")
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert len(upstream.seen) == 3


async def test_the_tokens_of_answers_count(upstream: Upstream) -> None:
    app = app_of(upstream, limits=Limits(tokens_per_minute=7))
    async with app.lifespan_context(app), http_client(app, authorization="Bearer one") as http:
        assert [(await http.post("/v1/audio/x", json={})).status_code for _ in range(3)] == [200, 200, 429]


async def test_a_client_that_leaves_ends_the_upstreams_request(upstream: Upstream) -> None:
    app = app_of(upstream, ())
    async with app.lifespan_context(app):
        connection = Connection(app, "POST", "/v1/audio/slow", b"{}", {"content-length": "2"})
        while not upstream.seen:
            await asyncio.sleep(0.001)
        connection.disconnect()
        await connection.task
        while not upstream.left.is_set():
            await asyncio.sleep(0.001)


async def test_an_upstream_that_is_away_is_a_502(upstream: Upstream) -> None:
    models = {"gpt": ModelEntry(upstream=UpstreamModel(base_url="http://127.0.0.1:9/v1"))}
    policies = Policies(models=models, passthrough={"/v1/audio": PassthroughRule(model="gpt")})
    app = build_app(Settings(), policies)
    async with app.lifespan_context(app), http_client(app) as http:
        response = await http.post("/v1/audio", json={})
        assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_unreachable")


@pytest.mark.parametrize(
    "rest",
    [
        *("%00", "a%00b", "a%0d%0aX:y", "%ff", "%c0%ae%c0%ae/x", "%2f", "a%2Fb", "%5c..%5cx", "%252e%252e/x"),
        *("%25", "a%zz", "a%2", "//x", "%e2%80%a8", "..%2fmodels", "%2e%2e/models", "a%7f", "a|b", 'a"b'),
    ],
)
async def test_odd_escapes_are_not_passed_on(upstream: Upstream, rest: str) -> None:
    app = app_of(upstream)
    raw_path = f"/v1/audio/{rest}".encode()
    scope = {"raw_path": raw_path, "path": unquote_to_bytes(raw_path).decode("utf-8", "replace")}
    headers = {"authorization": "Bearer one"}

    async def as_sent(given: Scope, receive: Receive, send: Send) -> None:
        await app({**given, **scope}, receive, send)

    async with app.lifespan_context(app):
        message = await Connection(as_sent, "POST", "/v1/audio/x", b"{}", headers).next()
    assert message["status"] == 404 and not upstream.seen, upstream.seen


@pytest.mark.parametrize("rest", ["caf%C3%A9", "a%20b", "file-1.mp3", "x:y@z", "a/"])
async def test_plain_escapes_are_passed_on(http: httpx.AsyncClient, upstream: Upstream, rest: str) -> None:
    assert (await http.post(f"/v1/audio/{rest}", json={})).status_code == 200
    assert upstream.seen[0][1] == f"/v1/audio/{rest}"


async def test_a_usage_that_cannot_be_costs_nothing(upstream: Upstream) -> None:
    limits = Limits(tokens_per_minute=100)
    app = app_of(upstream, limits=limits)
    async with app.lifespan_context(app), http_client(app, authorization="Bearer one") as client:
        for _ in range(3):
            for path in ("negative", "malformed"):
                response = await client.post(f"/v1/audio/{path}", json={})
                assert response.status_code == 200
        assert (await client.get("/metrics")).text.count("penstock_tokens_total{") == 0


async def test_what_passes_through_is_paid_and_stops_at_the_limit(upstream: Upstream) -> None:
    price = Price(
        input_usd_per_million_tokens=0, output_usd_per_million_tokens=0, request_usd=0.5, image_usd=1.0
    )
    app = app_of(upstream, limits=Limits(usd_per_day=1.0), price=price)
    async with app.lifespan_context(app), http_client(app, authorization="Bearer one") as http:
        assert [(await http.get("/v1/audio/list")).status_code for _ in range(5)] == [200] * 5
        assert (await http.post("/v1/audio/wrong", json={})).status_code == 400
        statuses = [(await http.post("/v1/audio/speech", json={})).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_each_request_leaves_a_record_and_can_be_cancelled(upstream: Upstream) -> None:
    admin = AdminSection(principals=["key-7692c3ad"])
    app = app_of(
        upstream, ("one", "two"), Limits(requests_per_minute=3), admin=admin, tenants=["key-7692c3ad"]
    )
    async with app.lifespan_context(app), http_client(app, authorization="Bearer one") as client:
        await client.post("/v1/audio/json", json={})
        await client.post("/v1/audio/json", json={}, headers={"authorization": "Bearer two"})
        await client.post("/v1/audio/wrong", json={"input": CANARY})
        assert (await client.post(f"/v1/audio/%2e%2e/{CANARY}?{CANARY}", json={})).status_code == 404
        slow = asyncio.create_task(client.post("/v1/audio/slow", json={}))
        while not (running := (await client.get("/admin/requests/in-flight")).json()["data"]):
            await asyncio.sleep(0.001)
        while len(upstream.seen) < 3:
            await asyncio.sleep(0.001)
        assert (running[0]["endpoint"], running[0]["model"]) == ("passthrough", "gpt")
        await client.post(f"/admin/requests/{running[0]['id']}/cancel", json={})
        assert (await slow).json()["error"]["code"] == "request_cancelled"
        assert (await client.post("/v1/audio/json", json={})).status_code == 429
        listed = await client.get("/admin/requests")
        assert CANARY not in listed.text
        rows = listed.json()["data"]
        whole = (await client.get(f"/admin/requests/{rows[-1]['id']}")).json()
    errors = [(row["status"], row["error"]) for row in rows]
    assert errors == [
        (429, "RateLimited"),
        (499, "Cancelled"),
        (404, "NotFound"),
        (400, "InvalidRequest"),
        (403, "Forbidden"),
        (200, ""),
    ]
    assert (rows[-1]["input_tokens"], rows[-1]["output_tokens"]) == (3, 2)
    assert [bar["name"] for bar in whole["timeline"]] == ["http", "call gpt"]


async def test_each_request_is_a_row_of_usage(upstream: Upstream, tmp_path: Path) -> None:
    price = Price(input_usd_per_million_tokens=1e6, output_usd_per_million_tokens=0, request_usd=0.5)
    app = app_of(upstream, price=price, data_dir=str(tmp_path))
    async with app.lifespan_context(app), http_client(app, authorization="Bearer one") as client:
        for path in ("json", "speech", "wrong"):
            await client.post(f"/v1/audio/{path}", json={})
        assert (await client.post("/v1/audio/x", headers={"authorization": "Bearer two"})).status_code == 401
    columns = "endpoint, model, status, input_tokens, output_tokens, cost_usd"
    with sqlite3.connect(tmp_path / "usage.sqlite") as file:
        rows = file.execute(f"SELECT {columns} FROM usage_rows ORDER BY serial").fetchall()
    assert rows == [
        ("passthrough", "gpt", 200, 3, 2, 3.5),
        ("passthrough", "gpt", 200, 0, 0, 0.5),
        ("passthrough", "gpt", 400, 0, 0, 0.0),
    ]

"""What a gateway writes about requests: lines of JSON, and a canary in none of its records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from tests.e2e.collector import HttpCollector
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server, wait_until
from tests.e2e.upstream import Upstream

POLICIES = """
tenants:
  team: {{keys: [{team}], limits: {{usd_per_day: 1000000}}}}
  small: {{keys: [{small}], limits: {{requests_per_minute: 1}}}}
routes: {{auto: {{model: remote}}, either: {{model: broken, fallback: {{any: [remote]}}}}}}
models:
  remote:
    upstream: {{base_url: "{url}"}}
    price: {{input_usd_per_million_tokens: 1000000, output_usd_per_million_tokens: 1000000}}
    cache: {{mode: exact}}
  broken:
    upstream: {{base_url: "http://127.0.0.1:9/v1"}}
    price: {{input_usd_per_million_tokens: 0, output_usd_per_million_tokens: 0}}
"""
CHAT = "/v1/chat/completions"
LEAKS = ("leak 400", "leak 401", "leak 429", "leak 500", "leak json", "leak event", "leak head")


class LeakyUpstream(Upstream):
    """Quotes what it was asked in all that it answers."""

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = body["messages"][-1]["content"]
        if not text.startswith("leak "):
            return await super()._chat(request)
        kind, quoted = text.split()[1], f"{text} {json.dumps(body)}"
        if kind.isdecimal():
            error = {"message": quoted, "type": quoted, "param": quoted, "code": quoted}
            return web.json_response({"error": error}, status=int(kind), reason=text)
        if kind == "event":
            event = f"data: {json.dumps({'error': {'message': quoted, 'code': quoted}})}\n\n"
            return web.Response(text=event, headers={"content-type": "text/event-stream"})
        headers = {"x-quoted": text, "x-request-id": text} if kind == "head" else {}
        return web.Response(text=f'{{"choices": "{quoted}', headers=headers, content_type="application/json")


@pytest.fixture(scope="module")
def leaky() -> Iterator[LeakyUpstream]:
    upstream = LeakyUpstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def spans() -> Iterator[HttpCollector]:
    collector = HttpCollector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def keys(canary: str) -> dict[str, str]:
    return {"team": f"sk-team-{canary}", "small": f"sk-small-{canary}"}


@pytest.fixture(scope="module")
def recorded(
    start_module_server: StartServer,
    leaky: LeakyUpstream,
    spans: HttpCollector,
    keys: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    """Four workers that write JSON."""
    folder: Path = tmp_path_factory.mktemp("records")
    ids = {name: f"key-{sha256(key.encode()).hexdigest()[:8]}" for name, key in keys.items()}
    (folder / "all.yaml").write_text(POLICIES.format(url=leaky.base_url, **ids))
    environment = {
        "PENSTOCK_LOG_FORMAT": "json",
        "PENSTOCK_ACCESS_LOG": "1",
        "PENSTOCK_DECISION_LOG": str(tmp_path_factory.mktemp("decisions") / "log"),
        "PENSTOCK_API_KEYS": ",".join(keys.values()),
        "OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    server = start_module_server("--policies", str(folder), "--workers", "4", environment=environment)
    server.api_key = keys["team"]
    server.data_dir.parent.joinpath("decision_log").write_text(environment["PENSTOCK_DECISION_LOG"])
    return server


def lines_of(server: Server) -> list[dict[str, Any]]:
    """All lines that the processes have logged."""
    return [json.loads(line) for line in server.log.splitlines()]


def line_about(server: Server, request_id: str) -> dict[str, Any]:
    """The one line that says how a request ended."""

    def found() -> list[dict[str, Any]]:
        lines = [each for each in lines_of(server) if each.get("request_id") == request_id]
        return [each for each in lines if each["logger"] == "penstock.request"]

    wait_until(lambda: bool(found()), 10.0, lambda: server.log[-2000:])
    [line] = found()
    return line


def wait_for_lines(server: Server, ids: set[str]) -> None:
    """Wait until there are lines about these requests."""
    wait_until(
        lambda: ids <= {each.get("request_id") for each in lines_of(server)}, 10.0, lambda: server.log[-2000:]
    )


def ask(server: Server, body: dict[str, Any], **headers: str) -> httpx.Response:
    """The answer to one chat request."""
    return httpx.post(server.root_url + CHAT, json=body, headers=server.headers | headers, timeout=60)


def chat(text: str, **more: object) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": "remote", "messages": [{"role": "user", "content": text}], **more}


def test_every_line_is_an_object(recorded: Server) -> None:
    wait_until(lambda: "serves http" in recorded.log, 10.0, lambda: recorded.log)  # in place of the banner
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines_of(recorded))


@pytest.mark.parametrize("stream", [False, True])
def test_one_line_tells_what_a_request_came_to(recorded: Server, stream: bool) -> None:
    answer = ask(recorded, chat(f"hello {stream}", model="auto", stream=stream, user="jo"))
    line = line_about(recorded, answer.headers["x-request-id"])
    assert (line["tenant"], line["model"], line["route"]) == ("team", "remote", "auto")
    assert (line["endpoint"], line["status"], line["error_type"]) == ("chat", 200, "")
    assert (line["input_tokens"], line["output_tokens"]) == (5, 3)
    assert line["cost_usd"] == pytest.approx(8.0)
    assert len(line["trace_id"]) == 32 and line["cache"] == "miss"


def test_fallbacks_and_refusals_have_a_line(
    recorded: Server, keys: dict[str, str], spans: HttpCollector
) -> None:
    fallen = ask(recorded, chat("fall back", model="either"))
    line = line_about(recorded, fallen.headers["x-request-id"])
    assert (line["model"], line["failed_models"], line["status"]) == ("remote", ["broken"], 200)
    small = {"authorization": f"Bearer {keys['small']}"}
    answers = (ask(recorded, chat("limited"), **small) for _ in range(20))  # each worker may take one
    refused = next(each for each in answers if each.status_code == 429)
    line = line_about(recorded, refused.headers["x-request-id"])
    assert (line["status"], line["error_type"], line["cost_usd"]) == (429, "RateLimited", 0)
    limit = {"tenant": "small", "limit": "requests_per_minute"}
    recorded.settle()
    assert recorded.metric("penstock_tenant_limit", **limit) == 1
    assert recorded.metric("penstock_tenant_refusals_total", **limit) == 1
    trace = line["trace_id"]
    admits = lambda all: [each for each in all if (each.trace_id, each.name) == (trace, "admit")]  # noqa: E731
    [admit] = admits(spans.wait_for(lambda all: bool(admits(all))))
    assert admit.attributes["error.type"] == "RateLimited"
    cut = ask(recorded, chat("cut", stream=True))
    line = line_about(recorded, cut.headers["x-request-id"])
    assert line["status"] == 502 and line["error_type"]


def test_lines_of_concurrent_requests_are_whole(recorded: Server) -> None:
    with ThreadPoolExecutor(16) as pool:
        bodies = [chat(f"at once {number} é\n", user="x" * 200) for number in range(64)]
        ids = {each.headers["x-request-id"] for each in pool.map(lambda body: ask(recorded, body), bodies)}
    wait_for_lines(recorded, ids)
    assert len(ids) == 64


def test_series_of_tenants_and_routes_add_up_over_workers(recorded: Server, keys: dict[str, str]) -> None:
    route = {"tenant": "team"}, {"route": "either"}
    names = "penstock_tenant_requests_total", "penstock_route_requests_total"
    recorded.settle()
    before = [recorded.metric(name, **labels) for name, labels in zip(names, route, strict=True)]
    with ThreadPoolExecutor(8) as pool:
        bodies = [chat(f"count {number}", model="either") for number in range(24)]
        assert {each.status_code for each in pool.map(lambda body: ask(recorded, body), bodies)} == {200}
    recorded.settle()
    for _ in range(8):  # whichever worker answers
        after = [recorded.metric(name, **labels) for name, labels in zip(names, route, strict=True)]
        assert [now - then for now, then in zip(after, before, strict=True)] == [24, 24]
    assert recorded.metric("penstock_route_fallbacks_total", route="either") >= 24
    assert recorded.metric("penstock_tenant_cost_usd_total", tenant="team") >= 24 * 8
    assert recorded.metric("penstock_tenant_tokens_total", tenant="team", kind="output") >= 24 * 3


def test_a_stream_that_breaks_is_no_success(recorded: Server) -> None:
    def counted(status: str) -> float:
        recorded.settle()
        return recorded.metric("penstock_requests_total", model="remote", status=status)

    good, broken = counted("2xx"), counted("broken")
    answer = ask(recorded, chat("cut", stream=True))
    assert answer.status_code == 200 and "error" in answer.text
    assert (counted("2xx"), counted("broken")) == (good, broken + 1)


def test_no_record_shows_a_canary(
    recorded: Server, spans: HttpCollector, canary: str, keys: dict[str, str]
) -> None:
    answers = []
    for text in (*LEAKS, "status 500", "cut", "fine"):
        for fields in ({}, {"stream": True}):
            body = chat(f"{text} {canary}", user=canary, metadata={canary: canary}, **fields)
            answers.append(ask(recorded, body, **{"x-note": canary}))
    wrong = {"authorization": f"Bearer wrong-{canary}"}
    answers.append(stranger := ask(recorded, chat(canary), **wrong))
    answers.append(ask(recorded, chat(canary) | {"messages": canary}))
    for answer in answers:
        assert canary not in str(answer.headers)
    line_about(recorded, answers[-1].headers["x-request-id"])
    known = {each.headers["x-request-id"] for each in answers}
    wait_for_lines(recorded, known - {stranger.headers["x-request-id"]})
    trace = line_about(recorded, answers[0].headers["x-request-id"])["trace_id"]
    spans.wait_for(lambda found: any(each.trace_id == trace for each in found))
    pages = [_page(recorded, path) for path in ("/metrics", "/health/ready", "/v1/usage", "/v1/models")]
    stored = [each.read_bytes() for each in _files(recorded)]
    assert b"penstock_requests_total" in pages[0] and b"output_tokens" in pages[2]
    assert any(each.name.startswith("usage") for each in _files(recorded))
    for secret in (canary, *keys.values()):
        for record in (recorded.log.encode(), spans.payload, *pages, *stored):
            at = record.find(secret.encode())
            assert at < 0, record[max(0, at - 300) : at + 100]


def _page(server: Server, path: str) -> bytes:
    return httpx.get(server.root_url + path, headers=server.headers, timeout=10).content


def _files(server: Server) -> list[Path]:
    """What the gateway keeps of requests: counts, usage, decisions."""
    decisions = Path(server.data_dir.parent.joinpath("decision_log").read_text())
    return [each for each in (*server.data_dir.rglob("*"), *decisions.parent.iterdir()) if each.is_file()]

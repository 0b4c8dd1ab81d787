"""Recent requests over two workers: any of them finds each record, and cancels what another one answers."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.auth import tenant_id
from tests.e2e.conftest import StartServer
from tests.e2e.server import HTTP, PATIENCE_S, SMALL_ENGINE, Server, wait_until
from tests.e2e.upstream import Upstream

KEYS = {name: f"sk-{name}-canary" for name in ("boss", "tenant")}
PATH, CHAT = "/admin/requests", "/v1/chat/completions"
CANARY = "prompt-canary"
LATE_MS = 30_000  # of a busy machine: an engine hears of a cancel after its step
POLICIES = """
models:
  remote:
    upstream: {{base_url: {url}}}
  small: {small}
admin: {{principals: [{boss}]}}
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.released.set()
    upstream.close()


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    folder: Path = tmp_path_factory.mktemp("policies")
    text = POLICIES.format(url=upstream.base_url, small=SMALL_ENGINE, boss=tenant_id(KEYS["boss"]))
    (folder / "all.yaml").write_text(text)
    arguments = ("--policies", str(folder), "--workers", "2")
    return start_module_server(*arguments, environment={"PENSTOCK_API_KEYS": ",".join(KEYS.values())})


def of(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}"}


def admin(server: Server, path: str = "") -> Any:  # noqa: ANN401 - JSON
    """What one of the workers says: each call is a connection of its own."""
    answer = HTTP.get(server.root_url + PATH + path, headers=of("boss"), timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    assert "canary" not in answer.text
    return answer.json()


def ask(
    server: Server, request_id: str, model: str = "remote", text: str = CANARY, **more: object
) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    headers = of("tenant") | {"x-request-id": request_id}
    return HTTP.post(server.root_url + CHAT, json=body, headers=headers, timeout=PATIENCE_S)


def until(holds: Callable[[], bool]) -> None:
    wait_until(holds, PATIENCE_S, lambda: "it does not come")


def test_every_worker_finds_the_record_of_every_other(server: Server) -> None:
    asked: list[str] = []
    while len({row["worker"] for row in admin(server)["data"]}) < 2:
        asked.append(f"find-{len(asked)}")
        assert ask(server, asked[-1]).status_code == 200
    for request_id in asked[-3:] * 3:
        found = admin(server, f"/{request_id}")
        assert (found["id"], found["tenant"]) == (request_id, tenant_id(KEYS["tenant"]))
        assert found["missing_workers"] == []
    assert [row["id"] for row in admin(server)["data"]] == asked[::-1]


def test_the_record_goes_down_to_the_engines_steps(server: Server) -> None:
    assert ask(server, "steps", "small", max_tokens=8).status_code == 200
    found = admin(server, "/steps")
    bars = engine_bars(found)
    assert {"authorize", "choose model"} <= bars.keys()
    assert found["output_tokens"] == 8 and bars["decode"]["text"].startswith("8 tokens in ")
    assert "tokens from 0" in bars["prefill"]["text"]
    call, decode = bars["call small"], bars["decode"]
    assert decode["start_ms"] + decode["ms"] <= call["start_ms"] + call["ms"] + 1


def engine_bars(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Bars by name, the engine's among them, in the order in which they happened."""
    assert not record["is_partial"]
    bars = {bar["name"]: bar for bar in record["timeline"]}
    in_order = [bars[name] for name in ("http", "call small", "queued", "prefill", "decode")]
    starts_ms = [bar["start_ms"] for bar in in_order]
    assert starts_ms == sorted(starts_ms), in_order
    assert bars["decode"]["start_ms"] + bars["decode"]["ms"] <= bars["http"]["ms"] + LATE_MS, in_order
    return bars


def test_a_sequence_that_the_gateway_ends_has_its_steps_too(server: Server) -> None:
    more: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True, "temperature": 0}
    text = ask(server, "whole", "small", **more).json()["choices"][0]["message"]["content"]
    more["stop"] = text[8:16]
    for request_id, stream in (("stopped", False), ("stopped-stream", True)):
        answer = ask(server, request_id, "small", stream=stream, **more).text
        assert '"finish_reason":"stop"' in answer
    headers = of("tenant") | {"x-request-id": "left"}
    body = {"model": "small", "messages": [{"role": "user", "content": CANARY}], "stream": True, "n": 2}
    with HTTP.stream(
        "POST", server.root_url + CHAT, json=body | more | {"stop": None}, headers=headers
    ) as streamed:
        next(streamed.iter_lines())
    until(lambda: "left" in [row["id"] for row in admin(server)["data"]])
    for request_id, num_sequences in (("stopped", 1), ("stopped-stream", 1), ("left", 2)):
        found = admin(server, f"/{request_id}")
        decode = engine_bars(found)["decode"]
        assert decode["ms"] > 0 and decode["text"].endswith(", ended by the gateway"), request_id
        assert [bar["name"] for bar in found["timeline"]].count("decode") == num_sequences
        assert 0 < int(decode["text"].split()[0]) < 300
    assert found["status"] == 499


def cancel(server: Server, request_id: str) -> httpx.Response:
    return HTTP.post(
        f"{server.root_url}{PATH}/{request_id}/cancel", headers=of("boss"), json={}, timeout=PATIENCE_S
    )


def test_any_worker_cancels_the_streams_of_all(server: Server) -> None:
    """Six streams, of which an engine computes one: six calls hardly all meet their own worker."""
    texts: dict[str, str] = {}

    def read(request_id: str, model: str, text: str, **more: object) -> None:
        texts[request_id] = ask(server, request_id, model, text, stream=True, **more).text

    ids = [f"cancel-{n}" for n in range(6)]
    threads = [threading.Thread(target=read, args=(each, "remote", "drip")) for each in ids[1:]]
    more: dict[str, object] = {"max_tokens": 2000, "ignore_eos": True}
    threads.append(threading.Thread(target=read, args=(ids[0], "small", CANARY), kwargs=more))
    for thread in threads:
        thread.start()
    until(
        lambda: len([row for row in admin(server, "/in-flight")["data"] if row["phase"] == "answering"]) == 6
    )
    for each in ids:
        assert cancel(server, each).json()["cancelled"] == 1
    for thread in threads:
        thread.join()
    for each in ids:
        *_, last = [line for line in texts[each].splitlines() if line.startswith("data: ")]
        assert json.loads(last[6:])["error"]["code"] == "request_cancelled"
        found = admin(server, f"/{each}")
        assert (found["status"], found["error"]) == (499, "Cancelled")
        if found["model"] == "small":
            assert engine_bars(found)["decode"]["ms"] > 0
    assert admin(server, "/in-flight")["data"] == []
    until(lambda: server.metric("penstock_engine_running_requests") == 0)
    assert server.log.count("was cancelled by") == 6 and "canary" not in server.log


HOSTILE = """
GET  - 401: "" /in-flight /a ?limit=1 /%00 /find-0
POST - 401: /steps/cancel
GET  tenant 403: "" /in-flight /steps /find-0 /a/cancel ?tenant=x
POST tenant 403: /steps/cancel /in-flight/cancel /a%2Fb/cancel
GET  boss 404: /unknown /a/b /a%2Fb /a%252Fb /%00 /%ff%fe /..%2f..%2fetc%2fpasswd /%2e%2e /LONG /<script>
GET  boss 404: /'%20OR%201=1-- /%F0%9F%98%80 /cancel /a/cancel /in-flight/ /find-0%20 /FIND-0 //
GET  boss 404: /find-0?tenant=other /find-0?tenant=%00
GET  boss 400: ?limit=0 ?limit=-1 ?limit=201 ?limit=LONG ?limit=1e2 ?limit=%D9%A1 ?limit=0x10
GET  boss 400: ?unknown=1 ?Limit=1
GET  boss 200: ?limit=200 ?tenant= ?status=%27 ?model=<x>&model=y ?limit
POST boss 405: "" /find-0 /in-flight
PUT  boss 405: "" /find-0
DELETE boss 405: "" /find-0 /find-0/cancel
POST boss 404: /unknown/cancel /find-0/cancel /%00/cancel
"""
"""Method, tenant, status, and what follows /admin/requests."""


def hostile() -> Iterator[tuple[str, str, str, int]]:
    for line in HOSTILE.strip().splitlines():
        method, tenant, status, *paths = line.split()
        for path in paths:
            yield method, path.strip('"').replace("LONG", "9" * 9000), tenant, int(status[:3])


def test_hostile_calls_get_an_error_and_end_nothing(server: Server) -> None:
    """One connection for all, as a hostile client has it; none gets anything of another's request."""
    assert ask(server, "find-0").status_code == 200 and ask(server, "steps").status_code == 200
    wrong, calls = [], [*hostile()]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    for method, path, tenant, status in calls:
        headers = {"content-type": "application/json"} | (of(tenant) if tenant in KEYS else {})
        connection.request(method, PATH + path, b"{}" if method == "POST" else None, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        is_error = status == 200 or set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
        if answer.status != status or not is_error or "canary" in text:
            wrong.append((method, path[:60], tenant, answer.status, text[:200]))
    connection.close()
    assert wrong == [] and len(calls) >= 50
    assert admin(server, "/find-0")["status"] == 200


def test_a_stopped_worker_is_named_and_a_killed_one_comes_back(server: Server) -> None:
    before = set(server.worker_pids())
    victim = min(before)
    os.kill(victim, signal.SIGSTOP)
    try:
        assert len(admin(server)["missing_workers"]) == 1
    finally:
        os.kill(victim, signal.SIGKILL)
    until(lambda: len(server.worker_pids()) == 2 and victim not in server.worker_pids())
    until(lambda: admin(server)["missing_workers"] == [])
    assert ask(server, "after").status_code == 200
    assert admin(server, "/after")["id"] == "after"

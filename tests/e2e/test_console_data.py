"""Live view and traffic of a gateway with two workers: what was sent is what they say, to operators only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.auth import tenant_id
from tests.e2e.conftest import StartServer
from tests.e2e.server import HTTP, Server, clean_environment, wait_until
from tests.e2e.upstream import Upstream

KEYS = {name: f"sk-{name}-{secrets.token_hex(8)}" for name in ("one", "two", "boss")}
POLICIES = """
models:
  remote:
    upstream: {{base_url: {url}}}
    price: {{input_usd_per_million_tokens: 1000000, output_usd_per_million_tokens: 2000000}}
    cache: {{mode: exact}}
routes: {{auto: {{model: remote}}}}
admin: {{principals: [boss]}}
tenants:
  boss: {{keys: [{boss}]}}
  one: {{keys: [{one}], limits: {{requests_per_day: 100, usd_per_day: 100000}}}}
  two: {{keys: [{two}]}}
"""
WORK = {"one": ["a", "b", "status 400"], "two": ["c", "c", "status 503", "status 400", "d"]}
"""Texts that each tenant sends, twice to the model and once to the route."""
PATHS = ("/admin/live?once=1", "/admin/live", "/admin/traffic", "/admin/traffic?since=30d&by=tenant")


@pytest.fixture(scope="module")
def remote() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer,
    remote: Upstream,
    tmp_path_factory: pytest.TempPathFactory,
    canary: str,
) -> Server:
    folder = tmp_path_factory.mktemp("policies")
    ids = {name: tenant_id(key) for name, key in KEYS.items()}
    (folder / "all.yaml").write_text(POLICIES.format(url=remote.base_url, **ids))
    environment = {"PENSTOCK_API_KEYS": ",".join(KEYS.values())}
    server = start_module_server("--policies", str(folder), "--workers", "2", environment=environment)
    server.policies = folder / "all.yaml"  # type: ignore[attr-defined]
    for name, texts in WORK.items():
        for model in ("remote", "remote", "auto"):
            for text in texts:
                headers = {"authorization": f"Bearer {KEYS[name]}", "x-penstock-cache": "no-store"}
                said = [{"role": "system", "content": canary}, {"role": "user", "content": text}]
                body = {"model": model, "messages": said, "user": f"{canary}-user"}
                url = f"{server.base_url}/chat/completions"
                answer = HTTP.post(url, json=body, headers=headers, timeout=60.0)
                expected_status = text.removeprefix("status ") if text.startswith("status") else "200"
                assert str(answer.status_code) == expected_status, answer.text
    expected = sum(3 * len(texts) for texts in WORK.values())
    wait_until(lambda: traffic(server)["total"]["requests"] == expected, 30.0, lambda: "rows are missing")
    server.settle()  # what a request set aside is given back after its answer
    return server


def look(server: Server, path: str, name: str = "boss", **headers: str) -> httpx.Response:
    sent = {"authorization": f"Bearer {KEYS[name]}", **headers}
    return HTTP.get(server.root_url + path, headers=sent, timeout=30.0)


def traffic(server: Server, **query: str) -> dict[str, Any]:
    parameters = httpx.QueryParams({"since": "7d", "by": "tenant", **query})
    found: dict[str, Any] = look(server, f"/admin/traffic?{parameters}").json()
    return found


@contextlib.contextmanager
def stream(server: Server) -> Iterator[Iterator[dict[str, Any]]]:
    """The snapshots of a stream."""
    headers = {"authorization": f"Bearer {KEYS['boss']}"}
    with httpx.stream("GET", f"{server.root_url}/admin/live", headers=headers, timeout=60.0) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        yield (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))


def test_figures_are_what_two_tenants_sent(server: Server) -> None:
    found = traffic(server)
    groups = {group["name"]: group for group in found["groups"]}
    assert set(groups) == set(WORK)
    for name, texts in WORK.items():
        count = Counter("error" if text.startswith("status") else "answer" for text in texts)
        group, answers, errors = groups[name], 3 * count["answer"], 3 * count["error"]
        assert (group["requests"], group["errors"]) == (answers + errors, errors)
        assert (group["input_tokens"], group["output_tokens"]) == (5 * answers, 3 * answers)
        assert group["cost_usd"] == pytest.approx(11.0 * answers)
        assert 0 < group["p50_s"] <= group["p95_s"] <= group["p99_s"]
    assert sum(groups["two"]["errors_by_class"].values()) == 6
    shares = {row["route"]: row["requests"] for row in found["router"]["shares"]}
    assert shares == {"": 16, "auto": 8}
    assert sum(group["requests"] for group in traffic(server, by="route")["groups"]) == 24
    limits = {each["limit"]: each for each in found["limits"]}
    assert {name: (each["tenant"], each["left"]) for name, each in limits.items()} == {
        "requests_per_day": ("one", 91.0),
        "usd_per_day": ("one", 100000.0 - 66.0),
    }


def test_the_live_view_shows_both_workers_and_the_upstream(server: Server) -> None:
    found = look(server, "/admin/live?once=1").json()
    assert [each["number"] for each in found["workers"]] == [0, 1]
    assert {each["pid"] for each in found["workers"]} == set(server.worker_pids())
    assert {each["policy"] for each in found["workers"]} == {found["policy"]}
    [target] = found["targets"]
    assert target["model"] == "remote" and target["state"] in ("ready", "failing")


@pytest.mark.parametrize("path", PATHS)
def test_tenants_get_nothing(server: Server, path: str) -> None:
    for name in ("one", "two"):
        refused = look(server, path, name)
        assert refused.status_code == 403
        assert set(refused.json()) == {"error"} and "remote" not in refused.text
    assert HTTP.get(server.root_url + path).status_code == 401
    assert look(server, path, authorization="Bearer sk-wrong").status_code == 401


def test_no_prompt_and_no_key_is_in_any_answer(server: Server, canary: str) -> None:
    texts = [look(server, path).text for path in PATHS if path != "/admin/live"]
    with stream(server) as snapshots:
        texts.append(json.dumps(next(snapshots)))
    for text in texts:
        assert canary not in text and "echo: " not in text
        assert not [key for key in KEYS.values() if key in text]


HOSTILE: Mapping[str, int] = {
    "/admin/traffic?since=1h&since=99d": 400,  # the last one counts
    "/admin/traffic?since=99d&since=1h": 200,
    "/admin/traffic?by=%00": 400,
    "/admin/traffic?by=%ff%fe": 400,
    "/admin/traffic?by=tenant%27%20OR%20%271%27%3D%271": 400,
    "/admin/traffic?by[]=tenant": 400,
    "/admin/traffic?limit=1&limit=-1": 400,
    "/admin/traffic?__proto__=1": 400,
    "/admin/traffic?" + "a" * 3000: 200,  # a name without a value is no parameter
    "/admin/traffic?" + "a=1&" * 500: 400,
    "/admin/traffic/": 404,
    "/admin/traffic/../live": 404,
    "/admin/live?once=1&once=x": 400,
    "/admin/live?once": 200,
    "/admin/live/once": 404,
    "/admin/LIVE?once=1": 404,
    "//admin/live?once=1": 404,
    "/admin/live?last-event-id=1": 400,
}


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_urls(server: Server, path: str) -> None:
    host, port = "127.0.0.1", server.port
    with socket.create_connection((host, port), timeout=30.0) as client:
        head = f"GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {KEYS['boss']}\r\n"
        client.sendall(f"{head}accept: */*\r\n\r\n".encode())
        answer = client.recv(65536)
        assert answer.startswith(f"HTTP/1.1 {HOSTILE[path]} ".encode()), answer[:300]


def test_a_reload_ends_no_stream_and_shows_the_new_policies(server: Server) -> None:
    policies: Path = server.policies  # type: ignore[attr-defined]
    with stream(server) as snapshots:
        before = next(snapshots)["policy"]
        policies.write_text(policies.read_text() + "usage: {keep_days: 30}\n")
        answer = HTTP.post(
            f"{server.root_url}/admin/policies",
            json={},
            headers={"authorization": f"Bearer {KEYS['boss']}"},
            timeout=120.0,
        )
        assert answer.status_code == 200, answer.text
        assert any(snapshot["policy"] != before for snapshot in snapshots)


def test_top_in_a_pipe_and_refused(server: Server) -> None:
    def top(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway.cli", "top", "--url", server.root_url, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=clean_environment({}), timeout=120, check=False
        )

    shown = top("--api-key", KEYS["boss"])
    assert shown.returncode == 0 and "remote  http" in shown.stdout and "\x1b" not in shown.stdout
    refused = top("--api-key", KEYS["one"], "--once", "--json")
    assert refused.returncode == 2 and "admin.principals" in refused.stderr and not refused.stdout


def test_a_drain_waits_for_no_stream_and_no_stalled_client(server: Server) -> None:
    key = KEYS["boss"]
    head = f"GET /admin/live HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode()
    with contextlib.ExitStack() as opened:
        for _ in range(4):
            stalled = opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            stalled.sendall(head)
        snapshots = opened.enter_context(stream(server))
        next(snapshots)
        os.kill(server.process.pid, signal.SIGTERM)
        assert list(snapshots) is not None  # it ends
    assert server.process.wait(60.0) == 0
    assert "were not finished" not in server.log

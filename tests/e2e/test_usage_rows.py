"""Usage of a real gateway with two workers: what the SDK saw adds up, also after SIGTERM and kill -9."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.accounting.usage_rows import INTERVAL_S
from gateway.auth import tenant_id
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server, wait_until
from tests.e2e.test_openai_sdk import ask
from tests.e2e.upstream import Upstream

KEYS = {name: f"sk-{name}-{secrets.token_hex(8)}" for name in ("one", "two", "boss")}
POLICIES = """
models:
  remote:
    upstream: {{base_url: {url}}}
    price: {{input_usd_per_million_tokens: 1000000, output_usd_per_million_tokens: 1000000}}
admin: {{principals: [{boss}]}}
"""
WAIT_S = 30.0


@pytest.fixture
def remote() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.released.set()
    upstream.close()


def start(start_server: StartServer, remote: Upstream, folder: Path) -> Server:
    policies = POLICIES.format(url=remote.base_url, boss=tenant_id(KEYS["boss"]))
    (folder / "all.yaml").write_text(policies)
    environment = {
        "PENSTOCK_API_KEYS": ",".join(KEYS.values()),
        "PENSTOCK_DATA_DIR": str(folder / "data"),
    }
    server = start_server("--policies", str(folder), "--workers", "2", environment=environment)
    server.api_key = KEYS["boss"]
    server.wait_ready()
    return server


def totals(server: Server, name: str = "boss", **query: str) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {KEYS[name]}"}
    answer = httpx.get(f"{server.base_url}/usage", params=query, headers=headers, timeout=10.0)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


def num_requests(server: Server, name: str = "boss") -> int:
    return sum(group["requests"] for group in totals(server, name))


def chat(server: Server, name: str, text: str, *, stream: bool) -> int:
    """Tokens that the client was told."""
    with openai.OpenAI(base_url=server.base_url, api_key=KEYS[name], max_retries=0) as client:
        headers = {"x-request-id": "always-the-same"}
        if not stream:
            answer = client.chat.completions.create(
                model="remote", messages=ask(text), user=f"jo-{text}", extra_headers=headers
            )
            assert answer.usage is not None
            return answer.usage.total_tokens
        chunks = client.chat.completions.create(
            model="remote",
            messages=ask(text),
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=headers,
        )
        return sum(chunk.usage.total_tokens for chunk in chunks if chunk.usage)


def test_totals_are_what_clients_were_told(
    start_server: StartServer, remote: Upstream, tmp_path: Path, canary: str
) -> None:
    server = start(start_server, remote, tmp_path)
    work = [(("one", "two")[number % 3 == 0], number % 2 == 0) for number in range(60)]
    with ThreadPoolExecutor(12) as threads:
        told = list(threads.map(lambda each: chat(server, each[0], canary, stream=each[1]), work))
    for name in ("one", "two"):
        expected = sum(tokens for tokens, (who, _) in zip(told, work, strict=True) if who == name)
        count = sum(who == name for who, _ in work)
        wait_until(lambda: num_requests(server, name) == count, WAIT_S, lambda: "rows are missing")  # noqa: B023
        [group] = totals(server, name)
        assert group["tenant"] == tenant_id(KEYS[name])  # the other's are not shown
        assert group["input_tokens"] + group["output_tokens"] == expected == group["cost_usd"]
        assert (group["errors"], group["estimated_requests"]) == (0, 0)
    assert len(totals(server, by="tenant")) == 2
    with pytest.raises(openai.APIStatusError):
        chat(server, "one", "status 400", stream=False)
    assert server.terminate() == 0  # at once: its row is written at the end
    command = [sys.executable, "-m", "gateway.cli", "usage", "--data-dir", str(tmp_path / "data")]
    command += ["--csv", "-", "--by", "status"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split(",")[:3] for line in table.splitlines()] == [
        ["status", "requests", "errors"],
        ["200", "60", "0"],
        ["400", "1", "1"],
    ]
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").glob("usage.sqlite*"))
    assert b"always-the-same" in stored
    for secret in (canary, *KEYS.values()):
        assert secret.encode() not in stored


def test_kill_nine_loses_the_last_second_at_most(
    start_server: StartServer, remote: Upstream, tmp_path: Path
) -> None:
    server = start(start_server, remote, tmp_path)
    for _ in range(40):
        chat(server, "one", "hello", stream=True)
    wait_until(lambda: num_requests(server) == 40, 10 * INTERVAL_S, lambda: f"{num_requests(server)} rows")
    answered = 0
    for pid in server.worker_pids():
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(openai.APIError):
            chat(server, "one", "hello", stream=False)
            answered += 1
    wait_until(server.is_ready, WAIT_S, lambda: "not ready")
    assert 40 <= num_requests(server) <= 40 + answered
    before = num_requests(server)
    for _ in range(5):
        chat(server, "one", "hello", stream=False)
    wait_until(lambda: num_requests(server) >= before + 5, WAIT_S, lambda: f"{num_requests(server)} rows")
    assert num_requests(server) <= 45 + answered

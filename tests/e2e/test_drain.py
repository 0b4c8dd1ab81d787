"""SIGTERM: open streams finish, new connections are refused, every process ends, exit code 0."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import httpx

from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.server import SMALL_ENGINE, STOP_TIMEOUT_S, Server, command_line, descendants, wait_until
from tests.e2e.test_openai_sdk import ask
from tests.e2e.upstream import Upstream

POLICIES = f"""
models:
  {MODEL}: {SMALL_ENGINE}
  sentences: {{encoder: {{checkpoint: "builtin:all-minilm-l6-v2", dtype: int8}}}}
"""


async def _drain(server: Server) -> bytes:
    """The body of a stream that is open when SIGTERM arrives."""
    body = {"model": MODEL, "messages": ask("count"), "max_tokens": 400, "ignore_eos": True, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + "/chat/completions", json=body) as open_,
    ):
        received = await open_.content.readany()
        server.process.send_signal(signal.SIGTERM)
        return received + await open_.content.read()


async def test_sigterm_lets_streams_finish(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(POLICIES)
    server = start_server("--workers", "2", "--policies", str(tmp_path))
    children = list(descendants(server.process.pid))
    assert len(children) >= 4  # two gateway workers, engine, encoder
    received = await _drain(server)
    assert b'"error"' not in received
    assert received.count(b'"finish_reason":"length"') == 1 and received.rstrip().endswith(b"data: [DONE]")
    assert await asyncio.to_thread(server.process.wait, STOP_TIMEOUT_S) == 0
    wait_until(lambda: not any(map(_is_ours, children)), 10, lambda: f"still there: {children}")
    assert "Traceback" not in server.log


def test_workers_share_one_set_of_metrics(
    start_server: StartServer, upstream: Upstream, tmp_path: Path
) -> None:
    (tmp_path / "models.yaml").write_text(f"models: {{m: {{upstream: {{base_url: '{upstream.base_url}'}}}}}}")
    server = start_server("--workers", "2", "--policies", str(tmp_path))
    count = 12
    for _ in range(count):  # a new connection each time, so that both workers get requests
        response = httpx.post(
            server.base_url + "/chat/completions",
            json={"model": "m", "messages": ask("hi"), "max_tokens": 1},
            timeout=30,
        )
        assert response.status_code == 200
    server.settle()
    pages = [server.metric("penstock_requests_total", endpoint="chat", status="2xx") for _ in range(4)]
    assert pages == [count] * 4
    assert server.terminate() == 0


def _is_ours(pid: int) -> bool:
    """True while the process exists and is one of the server's."""
    return Path(f"/proc/{pid}").exists() and any(n in command_line(pid) for n in (b"gateway", b"backend"))

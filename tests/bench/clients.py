"""Which HTTP client should call upstreams? Requests/s of a bare ASGI proxy on one core, per client.

    python -m tests.bench.clients [--seconds 4] [--rounds 2] [--connections 1,16,32] [--only aiohttp,lean]

Needs nginx and wrk. The proxy (uvicorn, uvloop, httptools, no product logic) runs on core 0; the instant
upstream (nginx) and wrk on core 1. Clients are interleaved, `--rounds` times; the best round counts. When
other load shares the cores, CPU time per request (all threads of the proxy) is more reliable than the rate:

    client     connections  CPU µs/request  requests/s        p50     (2 shared cores)
    lean                 1             231        1248      297µs     providers/upstream/http_client.py
    lean                16             106        4409     2.15ms
    lean                32              92        4033     7.33ms
    aiohttp              1             376        1519      410µs     3.14
    aiohttp             16             217        3178     3.72ms
    aiohttp             32             211        3502     7.32ms
    pyreqwest            1             285        2533      306µs     0.15, on two threads
    pyreqwest           16             139        6262     2.33ms
    pyreqwest           32             131        7135     4.11ms
    httpx2              16                         470    32.28ms     2.16
    httpx               16                         515    26.67ms     0.28
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.types import Receive, Scope, Send

PROXY_PORT = 9180
UPSTREAM_PORT = 9190
PATH = "/v1/chat/completions"
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "x" * 200}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 19, "completion_tokens": 35, "total_tokens": 54},
}
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Hello! What can you do for me today?"}]}
HEADERS = {"content-type": "application/json", "authorization": "Bearer sk-upstream"}

Call = Callable[[bytes], Awaitable[tuple[int, bytes]]]


async def _lean(base_url: str) -> Call:
    from gateway.providers.upstream.http_client import HttpClient

    client = HttpClient(base_url, connect_timeout_s=5.0, headers=HEADERS)

    async def call(body: bytes) -> tuple[int, bytes]:
        reply = await client.post(PATH, {}, body, 60.0)
        return reply.status, await reply.read_all(60.0, 1 << 20)

    return call


async def _aiohttp(base_url: str) -> Call:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(connect=5, sock_read=60)
    session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    async def call(body: bytes) -> tuple[int, bytes]:
        async with session.post(base_url + PATH, data=body, headers=HEADERS) as response:
            return response.status, await response.read()

    return call


async def _httpx(base_url: str, module: str = "httpx") -> Call:
    import importlib

    httpx = importlib.import_module(module)
    client = httpx.AsyncClient(
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=256), timeout=60
    )

    async def call(body: bytes) -> tuple[int, bytes]:
        response = await client.post(base_url + PATH, content=body, headers=HEADERS)
        return response.status_code, response.content

    return call


async def _httpx2(base_url: str) -> Call:
    return await _httpx(base_url, "httpx2")


async def _pyreqwest(base_url: str) -> Call:
    from datetime import timedelta

    from pyreqwest.client import ClientBuilder  # type: ignore[import-not-found, unused-ignore]

    limit = timedelta(seconds=60)
    client = ClientBuilder().read_timeout(limit).connect_timeout(limit).default_headers(HEADERS).build()

    async def call(body: bytes) -> tuple[int, bytes]:
        response = await client.post(base_url + PATH).body_bytes(body).build().send()
        return response.status, bytes(await response.bytes())

    return call


CLIENTS = {"lean": _lean, "aiohttp": _aiohttp, "pyreqwest": _pyreqwest, "httpx2": _httpx2, "httpx": _httpx}


class Proxy:
    """A minimal ASGI application that forwards each request to the upstream."""

    def __init__(self, client: str, base_url: str) -> None:
        self._make = CLIENTS[client]
        self._base_url = base_url
        self._call: Call | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._call is None:
            async with self._lock:
                self._call = self._call or await self._make(self._base_url)
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, answer = await self._call(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def serve(client: str) -> None:
    """Run the proxy with this client, as a child of the measuring process."""
    import uvicorn

    app = Proxy(client, f"http://127.0.0.1:{UPSTREAM_PORT}")
    uvicorn.run(
        app,
        port=PROXY_PORT,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="error",
    )


def _nginx_config(folder: Path) -> str:
    return f"""worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 100000000;
 server {{ listen 127.0.0.1:{UPSTREAM_PORT};
  location / {{ default_type application/json; return 200 '{json.dumps(ANSWER)}'; }} }} }}
"""


def _await_answer() -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{PROXY_PORT}{PATH}", json.dumps(QUESTION).encode(), HEADERS
    )
    for _ in range(100):
        try:
            urllib.request.urlopen(request, timeout=5).read()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the proxy did not answer within 10 s")


@dataclass(order=True, slots=True)
class Result:
    """One run of wrk; less CPU time per request is better."""

    cpu_us: float
    rate: float
    p50: str
    note: str


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wrk(folder: Path, pid: int, connections: int, seconds: float) -> Result:
    lua = 'wrk.method="POST"\nwrk.headers["Content-Type"]="application/json"\n'
    lua += f"wrk.body=[==[{json.dumps(QUESTION)}]==]"
    (folder / "post.lua").write_text(lua)
    command = ["taskset", "-c", "1", "wrk", "--latency", "-t1", f"-c{connections}", f"-d{seconds:g}s"]
    command += ["-s", str(folder / "post.lua"), f"http://127.0.0.1:{PROXY_PORT}{PATH}"]
    before_s = _cpu_s(pid)
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bad = "errors!" if "Non-2xx" in out else ""

    def find(pattern: str) -> str:
        match = re.search(pattern, out)
        return match[1] if match else "nan"

    cpu_us = (_cpu_s(pid) - before_s) * 1e6 / float(find(r"(\d+) requests in"))
    return Result(cpu_us, float(find(r"Requests/sec:\s+([\d.]+)")), find(r"50%\s+(\S+)"), bad)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--connections", default="1,16,32")
    parser.add_argument("--only", default=",".join(CLIENTS))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    names = args.only.split(",")
    connections = [int(c) for c in args.connections.split(",")]
    best: dict[tuple[str, int], Result] = {}
    folder = Path(tempfile.mkdtemp())
    (folder / "nginx.conf").write_text(_nginx_config(folder))
    upstream = subprocess.Popen(["taskset", "-c", "1", "nginx", "-c", str(folder / "nginx.conf")])
    try:
        for _ in range(args.rounds):
            for name in names:
                _measure(name, connections, args.seconds, folder, best)
    finally:
        upstream.send_signal(signal.SIGTERM)
        upstream.wait()
        shutil.rmtree(folder)
    print("client     connections  CPU µs/request  requests/s        p50")
    for (name, count), result in best.items():
        figures = f"{result.cpu_us:15.0f} {result.rate:11.0f} {result.p50:>10s} {result.note}"
        print(f"{name:10s} {count:11d} {figures}")


def _measure(
    name: str, connections: list[int], seconds: float, folder: Path, best: dict[tuple[str, int], Result]
) -> None:
    command = ["taskset", "-c", "0", sys.executable, "-m", "tests.bench.clients", "--serve", name]
    proxy = subprocess.Popen(command)
    try:
        _await_answer()
        _wrk(folder, proxy.pid, 16, 1)
        for count in connections:
            result = _wrk(folder, proxy.pid, count, seconds)
            best[name, count] = min(result, best.get((name, count), result))
    finally:
        proxy.terminate()
        proxy.wait()


if __name__ == "__main__":
    main()

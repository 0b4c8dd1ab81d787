"""Real servers on loopback: an HTTP/2 API with TLS, and a forward proxy."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from hypercorn.asyncio import serve
from hypercorn.config import Config

ANSWER = {"id": "c1", "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
PIECES = [
    {"id": "c1", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
    for text, finish in (("a", None), ("b", "stop"))
]


@dataclass
class Api:
    """An OpenAI-like ASGI application; remembers the HTTP version and peer of each request."""

    url: str = ""
    versions: list[str] = field(default_factory=list)
    peers: set[tuple[str, int]] = field(default_factory=set)
    stalls: bool = False  # after the first event of a stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.versions.append(scope["http_version"])
        self.peers.add(tuple(scope["client"]))
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        is_stream = json.loads(body).get("stream")
        kind = b"text/event-stream" if is_stream else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        if is_stream:
            for piece in PIECES:
                event = b"data: " + json.dumps(piece).encode() + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": True})
                if self.stalls:
                    await asyncio.sleep(30)
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        else:
            await send({"type": "http.response.body", "body": json.dumps(ANSWER).encode()})


@asynccontextmanager
async def tls_api(folder: Path) -> AsyncIterator[tuple[Api, str]]:
    """An Api behind TLS that offers HTTP/2, and the PEM file of the CA that signed it."""
    authority, ca_bundle = trustme.CA(), folder / "ca.pem"
    authority.cert_pem.write_to_path(ca_bundle)
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    config = Config()
    config.certfile, config.keyfile = str(folder / "cert.pem"), str(folder / "key.pem")
    config.graceful_timeout = 0.1
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    config.bind = [f"127.0.0.1:{port}"]
    api, stop = Api(f"https://localhost:{port}/v1"), asyncio.Event()
    serving = asyncio.create_task(serve(api, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
    await _reachable(port)
    try:
        yield api, str(ca_bundle)
    finally:
        stop.set()
        await serving


async def _reachable(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                return


@contextmanager
def forward_proxy(folder: Path, credentials: str = "") -> Iterator[str]:
    """HOST:PORT of a forward proxy process; with `credentials`, USER:PASSWORD, it asks for them."""
    port_file = folder / "proxy-port"
    command = [sys.executable, "-m", "proxy", "--hostname", "127.0.0.1", "--port", "0"]
    command += ["--port-file", str(port_file), "--num-workers", "1"]
    command += ["--basic-auth", credentials] if credentials else []
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (port_file.exists() and port_file.read_text().strip()):
            assert process.poll() is None, "the proxy ended"
        yield f"127.0.0.1:{port_file.read_text().strip()}"
    finally:
        process.terminate()
        process.wait(10)

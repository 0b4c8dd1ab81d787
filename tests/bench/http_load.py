"""A closed-loop load generator in place of wrk: URL CONNECTIONS SECONDS HEADERS BODY → one JSON line."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

from tests.bench.load import percentile


async def _connection(request: bytes, host: str, port: int, until_s: float, latencies_s: list[float]) -> int:
    """Send requests one after another on one connection; returns the number of failures."""
    reader, writer = await asyncio.open_connection(host, port)
    errors = 0
    while time.perf_counter() < until_s:
        started_s = time.perf_counter()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        latencies_s.append(time.perf_counter() - started_s)
        errors += not head.startswith(b"http/1.1 2")
    writer.close()
    return errors


async def main(url: str, connections: int, seconds: int, headers: dict[str, str], body: str) -> None:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    fields = {"host": parts.netloc, "content-length": str(len(body.encode())), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    request = f"POST {parts.path} HTTP/1.1\r\n{head}\r\n{body}".encode()
    latencies_s: list[float] = []
    started_s = time.perf_counter()
    errors = await asyncio.gather(
        *(
            _connection(request, parts.hostname, parts.port, started_s + seconds, latencies_s)
            for _ in range(connections)
        )
    )
    wall_s = time.perf_counter() - started_s
    print(
        json.dumps(
            {
                "req/s": len(latencies_s) / wall_s,
                "p50 ms": percentile(latencies_s, 0.5) * 1e3,
                "p99 ms": percentile(latencies_s, 0.99) * 1e3,
                "errors": sum(errors),
            }
        )
    )


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5]))

"""`penstock serve` as a process with a scripted upstream: banner, restarts, drain, no orphans."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

from gateway.settings import SettingsError, read_settings
from tests.e2e.server import free_port
from tests.gateway.processes.test_managed_process import is_alive, until
from tests.gateway.providers.upstream.scripted_server import (
    END,
    STREAM_HEAD,
    ScriptedServer,
    Seen,
    chunk,
    response,
    serving,
)

ROOT = Path(__file__).parents[3]
CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
WHOLE = b'{"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}'


class Gateway:
    """A running `penstock serve`."""

    def __init__(self, process: asyncio.subprocess.Process, banner: str) -> None:
        self.process = process
        self.banner = banner
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)/v1 after", banner)[1])  # type: ignore[index]

    def children(self) -> list[int]:
        return [
            int(pid)
            for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    async def ask(self, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps(
            {"model": "up", "stream": stream, "messages": [{"role": "user", "content": "x"}]}
        ).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        return reader, writer

    async def answer(self) -> bytes:
        reader, writer = await self.ask(stream=False)
        data = await reader.read()
        writer.close()
        return data


async def start(
    server: ScriptedServer, folder: Path, stdout: IO[bytes] | int, stderr: IO[bytes] | int, *flags: str
) -> asyncio.subprocess.Process:
    (folder / "p.yaml").write_text(f"models: {{up: {{upstream: {{base_url: '{server.base_url}'}}}}}}\n")
    arguments = ["-m", "gateway.cli", "serve", "--policies", str(folder), *flags]
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stdout=stdout, stderr=stderr
    )


@asynccontextmanager
async def gateway(server: ScriptedServer, folder: Path, *flags: str) -> AsyncIterator[Gateway]:
    pipe = asyncio.subprocess.PIPE
    process = await start(server, folder, pipe, pipe, "--port", "0", *flags)
    assert process.stdout is not None
    banner = b""
    try:
        async with asyncio.timeout(60):
            while b"curl" not in banner:
                line = await process.stdout.readline()
                assert line, (await process.stderr.read()).decode() if process.stderr else ""
                banner += line
        yield Gateway(process, banner.decode())
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def held_stream(writer: asyncio.StreamWriter, seen: Seen) -> None:
    """Answers a whole response at once; holds the end of a stream until `release` is set."""
    if not json.loads(seen.body)["stream"]:
        writer.write(response(WHOLE))
        return
    writer.write(STREAM_HEAD + chunk(CHUNK))
    release: asyncio.Event = held_stream.release  # type: ignore[attr-defined]
    await release.wait()
    writer.write(chunk(LAST) + END)


@pytest.fixture
def release() -> asyncio.Event:
    held_stream.release = asyncio.Event()  # type: ignore[attr-defined]
    return held_stream.release  # type: ignore[attr-defined,no-any-return]


async def test_banner_answers_and_a_killed_worker_is_restarted(
    tmp_path: Path, release: asyncio.Event
) -> None:
    async with serving(held_stream) as server, gateway(server, tmp_path, "--workers", "2") as running:
        assert "no API key configured: this machine only" in running.banner
        assert '"model": "up"' in running.banner
        assert WHOLE in await running.answer()
        workers = running.children()
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        await until(lambda: not is_alive(workers[0]))
        assert WHOLE in await running.answer()  # by the other worker
        await until(lambda: len(running.children()) == 2 and workers[0] not in running.children())
        assert WHOLE in await running.answer()


async def test_a_hung_worker_is_replaced_and_the_other_serves_on(
    tmp_path: Path, release: asyncio.Event
) -> None:
    async with serving(held_stream) as server, gateway(server, tmp_path, "--workers", "2") as running:
        reader, writer = await running.ask(stream=True)
        await reader.readuntil(CHUNK)
        before = running.children()
        (hung,) = [pid for pid in before if has_connection_of(pid, writer)]
        os.kill(hung, signal.SIGSTOP)
        assert WHOLE in await running.answer()
        assert b"[DONE]" not in await asyncio.wait_for(read_to_end(reader), 60)
        writer.close()
        await until(lambda: not is_alive(hung))
        await until(lambda: len(running.children()) == 2)
        assert WHOLE in await running.answer()
        assert set(before) - set(running.children()) == {hung}


def has_connection_of(pid: int, writer: asyncio.StreamWriter) -> bool:
    """True when the process has the server's end of the client's connection."""
    client = writer.get_extra_info("sockname")[1]
    connections = psutil.Process(pid).net_connections("tcp")
    return any(each.raddr and each.raddr.port == client for each in connections)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_drain_lets_streams_finish(tmp_path: Path, release: asyncio.Event) -> None:
    async with serving(held_stream) as server, gateway(server, tmp_path) as running:
        reader, writer = await running.ask(stream=True)
        await reader.readuntil(CHUNK)
        running.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            while True:  # until no process accepts connections
                try:
                    _, late = await asyncio.open_connection("127.0.0.1", running.port)
                    late.close()
                    await asyncio.sleep(0.02)
                except ConnectionRefusedError:
                    break
        release.set()
        assert LAST in await reader.read()
        writer.close()
        assert await asyncio.wait_for(running.process.wait(), 10) == 0


async def test_drain_limit_and_second_signal(tmp_path: Path, release: asyncio.Event) -> None:
    async with serving(held_stream) as server:
        async with gateway(server, tmp_path, "--drain-timeout", "1") as running:
            reader, writer = await running.ask(stream=True)
            await reader.readuntil(CHUNK)
            running.process.send_signal(signal.SIGTERM)
            rest = await asyncio.wait_for(reader.read(), 10)
            assert b"[DONE]" not in rest
            writer.close()
            assert await asyncio.wait_for(running.process.wait(), 10) == 0
        async with gateway(server, tmp_path) as running:
            reader, writer = await running.ask(stream=True)
            await reader.readuntil(CHUNK)
            running.process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.2)
            running.process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(running.process.wait(), 5) == 128 + signal.SIGINT
            writer.close()


async def health(port: int) -> bytes:
    """The status line and body of /health/ready, on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")[0] + answer.split(b"\r\n\r\n")[1]


async def leaving(running: Gateway) -> bytes:
    """What probes are told, once they are told."""
    async with asyncio.timeout(10):
        while (answer := await health(running.port)).startswith(b"HTTP/1.1 200"):
            await asyncio.sleep(0.01)
        return answer


async def test_new_requests_are_served_until_load_balancers_have_noticed(
    tmp_path: Path, release: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DRAIN_DELAY_S", "300")
    async with serving(held_stream) as server, gateway(server, tmp_path, "--workers", "2") as running:
        reader, writer = await running.ask(stream=True)
        await reader.readuntil(CHUNK)
        running.process.send_signal(signal.SIGTERM)
        answer = await leaving(running)
        assert answer.startswith(b"HTTP/1.1 503") and b'"status":"draining"' in answer
        assert all([WHOLE in await running.answer() for _ in range(20)])
        kept, sent = await asyncio.open_connection("127.0.0.1", running.port)
        sent.write(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")  # which may stay open
        assert b"connection: close" in await asyncio.wait_for(kept.read(), 10)
        sent.close()
        running.process.send_signal(signal.SIGHUP)  # a reload does not make it ready again
        assert WHOLE in await running.answer() and b"503" in await health(running.port)
        release.set()
        assert LAST in await reader.read()
        writer.close()
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.process.wait(), 10) == 128 + signal.SIGTERM


async def test_it_drains_when_the_delay_is_over(
    tmp_path: Path, release: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DRAIN_DELAY_S", "0.5")
    async with serving(held_stream) as server, gateway(server, tmp_path) as running:
        running.process.send_signal(signal.SIGTERM)
        await leaving(running)
        assert await asyncio.wait_for(running.process.wait(), 10) == 0


@pytest.mark.parametrize("value", ["-1", "soon", "nan", "1e9"])
def test_a_delay_that_is_none_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="PENSTOCK_DRAIN_DELAY_S"):
        read_settings({}, {"PENSTOCK_DRAIN_DELAY_S": value})
    assert read_settings({}, {"PENSTOCK_DRAIN_DELAY_S": "0"}).drain_delay_s == 0


async def test_kill_leaves_neither_orphans_nor_files(
    tmp_path: Path, release: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    async with serving(held_stream) as server, gateway(server, tmp_path, "--workers", "2") as running:
        workers = running.children()
        assert list(temporary.iterdir()) == []
        running.process.kill()
        await running.process.wait()
        await until(lambda: not any(map(is_alive, workers)))
        assert list(temporary.iterdir()) == []


async def test_a_full_disk_under_stdout_and_stderr_stops_nothing(
    tmp_path: Path, release: asyncio.Event
) -> None:
    """Nothing can be logged, not even the banner."""
    port = free_port()
    async with serving(held_stream) as server:
        with open("/dev/full", "wb") as full:
            process = await start(server, tmp_path, full, full, "--port", str(port))
        running = Gateway(process, f"http://127.0.0.1:{port}/v1 after")
        try:
            worker = 0
            for _ in range(2):
                await until_answered(running)
                (pid,) = running.children()
                assert pid != worker
                os.kill(pid, signal.SIGKILL)
                worker = pid
                await until(lambda worker=worker: not is_alive(worker))
            await until_answered(running)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 10) == 0
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def until_answered(running: Gateway) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if WHOLE in await running.answer():
                    return
            except OSError:  # not listening yet, or the worker was killed
                await asyncio.sleep(0.02)

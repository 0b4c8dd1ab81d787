"""Engines at TCP ports: connections that are made, lost, silent and not possible."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from backend.server import client as client_module
from backend.server.endpoints import RemoteEndpoint
from backend.server.engine_client import EngineClient
from backend.server.engine_messages import EngineStats, Heartbeat, Hello
from backend.server.wire import encode_message
from tests.backend.server.asking import TIMEOUT_S, ask

HELLO = encode_message(Hello("fake", "/none", "r", 512, 1000, 64, "cpu", "float32"))
BEAT = encode_message(Heartbeat(1, EngineStats()))


class Peer:
    """A TCP port that says `words` to each connection and reads what comes."""

    def __init__(self, words: bytes) -> None:
        self.words = words
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> RemoteEndpoint:
        self.server = await asyncio.start_server(self.talk, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        return RemoteEndpoint(f"tcp://127.0.0.1:{port}", "127.0.0.1", port)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(self.words)
        await reader.read()
        writer.close()

    def close(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_silent_connection_is_lost_and_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No end of the connection tells that a machine was switched off or its packets are dropped."""
    monkeypatch.setattr(client_module, "HEARTBEAT_LIMIT_S", 0.2)
    monkeypatch.setattr(client_module, "_WATCH_S", 0.02)
    caplog.set_level(logging.INFO)
    peer = Peer(HELLO + BEAT)
    client = EngineClient(await peer.start())
    await client.start()
    await client.wait_ready(TIMEOUT_S)
    (stream,) = client.submit([ask("a", [1])])
    with pytest.raises(Exception, match="closed the connection"):
        await anext(stream)
    await until(lambda: len(peer.writers) > 1)
    assert any("sent no heartbeat for" in record.message for record in caplog.records)
    await client.close()
    peer.close()


async def test_a_peer_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "GREETING_LIMIT_S", 0.1)
    monkeypatch.setattr(client_module, "_WATCH_S", 0.02)
    peer = Peer(b"")
    client = EngineClient(await peer.start())
    await client.start()
    await until(lambda: len(peer.writers) > 2)
    assert client.fault == "said nothing for 0.1 s" and not client.ready
    await client.close()
    peer.close()


async def test_what_answers_but_is_no_engine(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    client = EngineClient(await peer.start())
    await client.start()
    await until(lambda: len(peer.writers) > 2)
    assert "malformed frame: a frame announces 1213486160 bytes" in client.fault
    assert len(caplog.records) == 1, "the same reason is logged once"
    peer.words = HELLO + BEAT
    await client.wait_ready(TIMEOUT_S)
    assert client.fault == "" and client.is_remote
    await client.close()
    peer.close()


async def test_a_port_where_none_listens() -> None:
    peer = Peer(b"")
    endpoint = await peer.start()
    peer.close()
    client = EngineClient(endpoint)
    await client.start()
    await until(lambda: client.fault != "")
    assert client.fault.startswith("cannot be reached: ") and repr(endpoint) != ""
    await client.close()

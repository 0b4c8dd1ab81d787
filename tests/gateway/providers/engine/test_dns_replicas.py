"""Replicas behind a DNS name come and go with its records."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from backend.server.engine_client import EngineClient, RequestStream
from backend.server.quote import PageIndex
from gateway.providers.engine import dns_replicas
from gateway.providers.engine.dns_replicas import DnsReplicas
from gateway.providers.engine.remote import Door
from gateway.providers.engine.replicas import Prompt, Replicas
from gateway.settings import Settings
from policies.document import EngineModel
from policies.engine_addresses import parse_dns

TIMEOUT_S = 20


class Records:
    """What the name `engines` has, in place of the resolver's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: list[str] | None = []
        self.num_asked = 0
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self.look_up)

    async def look_up(self, host: str, port: int, **more: object) -> list[object]:
        if host != "engines":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        self.num_asked += 1
        if self.hosts is None:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (each, port)) for each in self.hosts for _ in range(2)]


@pytest.fixture
async def records(monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setattr(dns_replicas, "REFRESH_S", 0.02)
    monkeypatch.setattr(dns_replicas, "AFTER_LOSS_S", 0.0)
    return Records(monkeypatch)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not holds():
            await asyncio.sleep(0.005)


def new(dns: str) -> tuple[DnsReplicas, Replicas, dict[str, EngineClient]]:
    engine = EngineModel(checkpoint="c", dns=dns)
    replicas = Replicas([], PageIndex())
    engines: dict[str, EngineClient] = {}
    door = Door("m", engine, Settings())
    return DnsReplicas("m", parse_dns(dns), door, replicas, engines), replicas, engines


def places(replicas: Replicas) -> list[str]:
    return sorted(client.place for client in replicas.clients)


async def test_records_come_and_go(records: Records) -> None:
    dns, replicas, engines = new("engines:7600")
    assert not replicas.first.ready and replicas.choose(Prompt([1])) is replicas.first
    await dns.start()
    records.hosts = ["127.0.0.1", "::1"]
    await until(lambda: places(replicas) == ["tls://127.0.0.1:7600", "tls://[::1]:7600"])
    assert engines.keys() == {"m#tls://127.0.0.1:7600", "m#tls://[::1]:7600"}
    assert {client._endpoint.server_name for client in replicas.clients} == {"engines"}  # type: ignore[union-attr]
    records.hosts = None
    asked = records.num_asked
    await until(lambda: records.num_asked > asked + 2)
    assert len(replicas.clients) == 2, "a look-up that fails changes nothing"

    (leaving,) = (client for client in replicas.clients if "[::1]" in client.place)
    leaving._streams["s"] = RequestStream("s", lambda: None)
    records.hosts = ["127.0.0.1"]
    await until(lambda: places(replicas) == ["tls://127.0.0.1:7600"])
    assert engines["m#tls://[::1]:7600"] is leaving, "it finishes what it has begun"
    del leaving._streams["s"]
    await until(lambda: "m#tls://[::1]:7600" not in engines)
    records.hosts = ["127.0.0.1", "127.0.0.9"]
    await until(lambda: len(replicas.clients) == 2)
    assert {client.pages.number for client in replicas.clients} == {0, 1}, "the index does not grow"
    await dns.close()


async def test_a_lost_connection_is_a_reason_to_look(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns_replicas, "REFRESH_S", 3600)
    dns, replicas, _ = new("engines:7600")
    records.hosts = ["127.0.0.1"]
    await dns.start()
    await until(lambda: replicas.clients)
    assert records.num_asked == 1
    replicas.clients[0].on_lost()
    await until(lambda: records.num_asked == 2)
    await dns.close()


async def test_plain_tcp_stays_on_this_machine(records: Records) -> None:
    """A name of this machine may lead elsewhere."""
    dns, replicas, _ = new("tcp://localhost:7600")

    async def look_up(*_: object, **__: object) -> list[object]:
        return [(0, 0, 0, "", (each, 7600)) for each in ("127.0.0.1", "10.0.0.1")]

    asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[method-assign, assignment]
    await dns.start()
    await until(lambda: replicas.clients)
    assert places(replicas) == ["tcp://127.0.0.1:7600"]
    await dns.close()

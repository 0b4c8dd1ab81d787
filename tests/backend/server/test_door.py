"""Peers of a port that others can reach: those that show what is asked for, and all others."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.errors import ConfigError
from backend.server import door as door_module
from backend.server import server as server_module
from backend.server.door import MAX_NEWCOMERS, Door, DoorConfig
from backend.server.endpoints import RemoteEndpoint, client_tls
from backend.server.engine_client import EngineClient
from backend.server.engine_messages import Hello
from backend.server.engine_server import EngineServer
from backend.server.server import ServerLimits
from backend.server.token_proof import Challenge, is_proof, prove
from tests.backend.engine.fake_runner import FakeRunner
from tests.backend.server.asking import TIMEOUT_S, ask, expected_ignoring_eos, text
from tests.backend.server.certificates import Certificates, make_certificates

TOKEN = "a token that is long enough"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("other"))


@contextmanager
def serving(config: DoorConfig) -> Iterator[int]:
    """A server with this door; gives its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    hello = Hello("fake", "/none", "r", 512, 50, 64, "cpu", "float32")
    server = EngineServer(
        Engine(EngineConfig(model="fake", checkpoint="/none"), FakeRunner()),
        hello,
        listener,
        ServerLimits(heartbeat_s=0.05),
    )
    server.door = Door(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def mutual(own: Certificates, **more: str) -> DoorConfig:
    return DoorConfig(certificate=own.certificate, key=own.key, ca=own.ca, **more)


@asynccontextmanager
async def connected(endpoint: RemoteEndpoint) -> AsyncIterator[EngineClient]:
    client = EngineClient(endpoint)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not holds():
            await asyncio.sleep(0.01)


async def answers(endpoint: RemoteEndpoint) -> None:
    """Checks that a gateway with this endpoint is served."""
    async with connected(endpoint) as client:
        await client.wait_ready(TIMEOUT_S)
        (stream,) = client.submit([ask("a", [1, 2, 3], 5)])
        assert await text(stream) == expected_ignoring_eos([1, 2, 3], 5)


async def test_those_that_show_what_is_asked_for(own: Certificates) -> None:
    shown = client_tls(own.ca, own.certificate, own.key)
    with serving(mutual(own)) as port:
        await answers(RemoteEndpoint("tls://e", "127.0.0.1", port, shown))
        await answers(RemoteEndpoint("tls://e", "127.0.0.1", port, shown, server_name="localhost"))
    with serving(DoorConfig(certificate=own.certificate, key=own.key, token=TOKEN)) as port:
        await answers(RemoteEndpoint("tls://e", "127.0.0.1", port, client_tls(own.ca), token=TOKEN))
    with serving(DoorConfig(token=TOKEN)) as port:
        await answers(RemoteEndpoint("tcp://e", "127.0.0.1", port, token=TOKEN))
    with serving(DoorConfig()) as port:
        await answers(RemoteEndpoint("tcp://e", "127.0.0.1", port))


@pytest.mark.parametrize(
    ("why", "fault", "logged"),
    [
        ("another token", "refuses this gateway: the token is another", "has another token"),
        ("no token", "asks for a token, and the policies name none", "left without a proof"),
        ("a token that none asks for", "asks for no token although the policies name one", ""),
        ("an unknown authority", "CERTIFICATE_VERIFY_FAILED", "no TLS: "),
        ("another name", "CERTIFICATE_VERIFY_FAILED", "no TLS: "),
        ("no certificate", "closed the connection", "no TLS: peer did not return a certificate"),
        ("a certificate of another authority", "closed the connection", "no TLS: certificate verify failed"),
        ("plain frames", "closed the connection", "it did not show who it is within 0.2 s"),
        ("TLS where none is", "cannot be reached", ""),
    ],
)
async def test_both_sides_say_why(
    own: Certificates,
    other: Certificates,
    why: str,
    fault: str,
    logged: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if why == "plain frames":  # no other waits for the limit, which a busy machine may need
        monkeypatch.setattr(door_module, "ADMISSION_LIMIT_S", 0.2)
        monkeypatch.setattr("backend.server.server.ADMISSION_LIMIT_S", 0.2)
    caplog.set_level(logging.INFO)
    config = mutual(own)
    tls = client_tls(own.ca, own.certificate, own.key)
    endpoint = RemoteEndpoint("tls://e", "127.0.0.1", 0, tls)
    changes: dict[str, tuple[DoorConfig, RemoteEndpoint]] = {
        "another token": (mutual(own, token=TOKEN), _but(endpoint, token="no " + TOKEN)),
        "no token": (mutual(own, token=TOKEN), endpoint),
        "a token that none asks for": (config, _but(endpoint, token=TOKEN)),
        "an unknown authority": (config, _but(endpoint, tls=client_tls(other.ca))),
        "another name": (config, _but(endpoint, server_name="elsewhere.example")),
        "no certificate": (config, _but(endpoint, tls=client_tls(own.ca))),
        "a certificate of another authority": (
            config,
            _but(endpoint, tls=client_tls(own.ca, other.certificate, other.key)),
        ),
        "plain frames": (config, _but(endpoint, tls=None)),
        "TLS where none is": (DoorConfig(), endpoint),
    }
    config, endpoint = changes[why]
    with serving(config) as port:
        async with connected(_but(endpoint, port=port)) as client:
            await until(lambda: client.fault)
            assert fault in client.fault and TOKEN not in caplog.text
            assert not client.ready and client.hello is None
            refused = "the connection from 127.0.0.1:"
            await until(lambda: not logged or any(logged in r.message for r in caplog.records))
            assert not logged or refused in caplog.text


def _but(endpoint: RemoteEndpoint, **changes: object) -> RemoteEndpoint:
    return replace(endpoint, **changes)  # type: ignore[arg-type]


HOSTILE = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    os.urandom(4096),
    (64 * 1024 * 1024).to_bytes(4, "big") + b"x" * 1000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,  # half of a TLS greeting
    b"\x00\x00\x00\x05\xc1",
]


@pytest.mark.parametrize("kind", ["mutual TLS", "token"])
async def test_hostile_peers_hold_up_no_request(
    own: Certificates, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door_module, "ADMISSION_LIMIT_S", 3.0)  # which the one that answers must keep
    is_tls = kind == "mutual TLS"
    config = mutual(own) if is_tls else DoorConfig(token=TOKEN)
    tls = client_tls(own.ca, own.certificate, own.key) if is_tls else None
    with serving(config) as port:
        endpoint = RemoteEndpoint("e", "127.0.0.1", port, tls, token="" if is_tls else TOKEN)
        words = [*HOSTILE, *[b""] * MAX_NEWCOMERS]
        peers = [socket.create_connection(("127.0.0.1", port)) for _ in words]
        for peer, word in zip(peers, words, strict=True):
            with suppress(OSError):  # it has given way already
                peer.sendall(word)
        slow = socket.create_connection(("127.0.0.1", port))
        await asyncio.gather(answers(endpoint), _drip(slow))
        for peer in peers:
            await _closed(peer)
    assert caplog.text.count("was refused: ") == len(peers) + 1
    assert "others come" in caplog.text and "it did not show who it is within" in caplog.text


def test_who_gave_way_to_another_may_have_sent_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_NEWCOMERS", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    server = EngineServer(
        Engine(EngineConfig(model="fake", checkpoint="/none"), FakeRunner()),
        Hello("fake", "/none", "r", 512, 50, 64, "cpu", "float32"),
        listener,
    )
    server.door = Door(DoorConfig(token=TOKEN))
    with socket.create_connection(listener.getsockname()) as first:
        server._poll(TIMEOUT_S)
        first.sendall(b"x")
        with socket.create_connection(listener.getsockname()) as second:
            select = server._selector.select
            while len(events := select(TIMEOUT_S)) < 2:
                pass
            events.sort(key=lambda each: each[0].fileobj is not listener)  # the one that comes is first
            monkeypatch.setattr(server._selector, "select", lambda timeout_s: events)
            server._poll(TIMEOUT_S)
            (left,) = server._newcomers
            assert left.peer.endswith(f":{second.getsockname()[1]}")
            left.sock.close()
    listener.close()
    server.close()


@pytest.mark.parametrize("resets", [False, True])
async def test_probes_of_the_port_leave_no_line_in_the_log(
    own: Certificates, resets: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Kubernetes' probes connect every few seconds, and leave without a word or with a reset."""
    with serving(mutual(own)) as port:
        for _ in range(3):
            probe = socket.create_connection(("127.0.0.1", port))
            if resets:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            probe.close()
        await answers(
            RemoteEndpoint("tls://e", "127.0.0.1", port, client_tls(own.ca, own.certificate, own.key))
        )
    assert "was refused" not in caplog.text


async def _drip(sock: socket.socket) -> None:
    """A byte at a time, until the server has had enough."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(TIMEOUT_S):
        try:
            for byte in b"\x00\x00\x00\xf0" + b"\x81" * 200:
                await loop.sock_sendall(sock, bytes([byte]))
                await asyncio.sleep(0.1)
        except OSError:
            sock.close()
            return
    raise AssertionError("the server waits for ever")


async def _closed(sock: socket.socket) -> None:
    sock.setblocking(False)
    async with asyncio.timeout(TIMEOUT_S):
        try:
            while await asyncio.get_running_loop().sock_recv(sock, 65536):
                pass
        except OSError:
            pass
    sock.close()


def test_files_that_cannot_be_used(own: Certificates, other: Certificates, tmp_path: Path) -> None:
    nonsense = tmp_path / "n.pem"
    nonsense.write_text("nonsense")
    for config, words in (
        (DoorConfig(certificate="/none", key=own.key), "'/none' .*No such file"),
        (DoorConfig(certificate=own.certificate, key=other.key), "key values mismatch"),
        (DoorConfig(certificate=own.certificate, key=own.key, ca=str(nonsense)), "the CAs in .*n.pem"),
    ):
        with pytest.raises(ConfigError, match=words):
            Door(config)
    with pytest.raises(ConfigError, match="the CAs in '/none' cannot be used: No such file"):
        client_tls("/none")
    with pytest.raises(ConfigError, match="key values mismatch"):
        client_tls(own.ca, own.certificate, other.key)


def test_a_proof_holds_for_one_nonce_and_one_token() -> None:
    challenge, another = Challenge(b"1" * 32), Challenge(b"2" * 32)
    proof = prove(TOKEN, challenge)
    assert is_proof(proof, TOKEN, challenge)
    assert not is_proof(proof, TOKEN, another) and not is_proof(proof, "x", challenge)
    assert TOKEN not in repr(DoorConfig(token=TOKEN))
    assert TOKEN not in repr(RemoteEndpoint("e", "h", 1, token=TOKEN))

"""The loop that both servers share, with an echo for a service."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from backend.server.connections import Connection
from backend.server.server import Server, ServerLimits
from backend.server.wire import FrameReader, encode_message
from tests.backend.server.listening import listen


class Say(msgspec.Struct, tag="say"):
    text: str


class Echo(Server[Say]):
    """Answers each message in a step of its own, unless it is `stuck`; then it never does."""

    def __init__(self, path: Path, limits: ServerLimits) -> None:
        super().__init__(listen(path), msgspec.msgpack.Decoder(Say), limits)
        self.waiting: list[tuple[Connection[Say], str]] = []
        self.admitted = threading.Event()
        self.stuck = False
        self.num_cancelled = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting)

    def close(self) -> None:
        pass

    def _greet(self, connection: Connection[Say]) -> None:
        self._send(connection, Say("hello"))

    def _handle(self, connection: Connection[Say], message: Say) -> None:
        if self.is_draining:
            self._send(connection, Say("rejected"))
        else:
            self.waiting.append((connection, message.text))
            self.admitted.set()

    def _step(self) -> None:
        if self.stuck:
            time.sleep(0.001)
        else:
            connection, text = self.waiting.pop(0)
            self._send(connection, Say(text))

    def _heartbeat(self) -> Say:
        return Say("beat")

    def _cancel_all(self, connection: Connection[Say]) -> int:
        before = len(self.waiting)
        self.waiting = [entry for entry in self.waiting if entry[0] is not connection]
        self.num_cancelled += before - len(self.waiting)
        return before - len(self.waiting)

    def _abandon(self) -> None:
        for connection, _ in self.waiting:
            self._send(connection, Say("abandoned"))


@contextmanager
def running(path: Path, **limits: float) -> Iterator[tuple[Echo, threading.Thread]]:
    server = Echo(path, ServerLimits(**limits))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server, thread
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()


class Peer:
    """A blocking client."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(path))
        self._frames = FrameReader()

    def say(self, text: str) -> None:
        self.sock.sendall(encode_message(Say(text)))

    def hear(self, count: int) -> list[str]:
        """The next messages but heartbeats; fewer at the end of the connection."""
        heard: list[str] = []
        while len(heard) < count:
            data = self.sock.recv(65536)
            if not data:
                break
            texts = [msgspec.msgpack.decode(body, type=Say).text for body in self._frames.feed(data)]
            heard += [text for text in texts if text != "beat"]
        return heard


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


def test_greets_answers_and_beats(path: Path) -> None:
    beats = threading.Semaphore(0)
    with running(path, heartbeat_s=0.01) as (server, _):
        server.on_heartbeat = beats.release
        peer = Peer(path)
        peer.say("one")
        peer.say("two")
        assert peer.hear(3) == ["hello", "one", "two"]
        assert all(beats.acquire(timeout=20) for _ in range(3)), "while idle, too"
        peer.sock.close()


def test_a_peer_that_goes_away_is_cancelled(path: Path) -> None:
    with running(path) as (server, _):
        server.stuck = True
        peer, other = Peer(path), Peer(path)
        peer.say("lost")
        assert server.admitted.wait(20)
        peer.sock.close()
        deadline_s = time.monotonic() + 20
        while not server.num_cancelled and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert server.num_cancelled == 1
        server.stuck = False
        other.say("kept")
        assert other.hear(2) == ["hello", "kept"]
        other.sock.close()


def test_what_was_sent_before_stop_is_answered(path: Path) -> None:
    with running(path) as (server, thread):
        peer = Peer(path)
        assert peer.hear(1) == ["hello"]
        server.stuck = True
        peer.say("first")
        assert server.admitted.wait(20)
        peer.say("second")
        server.stop()
        while not server.is_draining:
            time.sleep(0.001)
        peer.say("late")
        assert peer.hear(1) == ["rejected"]
        server.stuck = False
        assert peer.hear(3) == ["first", "second"]
        thread.join(20)
        peer.sock.close()


def test_what_takes_longer_than_the_drain_limit_is_told(path: Path) -> None:
    with running(path, drain_limit_s=0.05) as (server, thread):
        server.stuck = True
        peer = Peer(path)
        peer.say("too long")
        assert server.admitted.wait(20)
        server.stop()
        assert peer.hear(3) == ["hello", "abandoned"]
        thread.join(20)
        peer.sock.close()

"""The loop of an engine or encoder process: read messages, compute one step, send results, send a heartbeat.

Single-threaded. The heartbeat comes from this loop and nowhere else: when steps hang, it stops.
"""

from __future__ import annotations

import itertools
import logging
import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from backend.errors import FrameError
from backend.server.connections import Connection, ConnectionEnded
from backend.server.door import ADMISSION_LIMIT_S, LEFT, MAX_NEWCOMERS, Door, Newcomer
from backend.server.wire import encode_message

logger = logging.getLogger(__name__)

_FLUSH_LIMIT_S = 1.0
_UNACKNOWLEDGED_LIMIT_MS = 30_000  # then a TCP connection has ended; heartbeats always wait for an answer

Incoming = TypeVar("Incoming")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a server's loop."""

    heartbeat_s: float = 0.5
    max_buffered_bytes: int = 32 * 1024 * 1024  # waiting to be read by one gateway
    stall_limit_s: float = 30.0  # a gateway that reads nothing for so long is dropped
    drain_limit_s: float = 30.0  # after stop(): how long unfinished requests may take


class Server(ABC, Generic[Incoming]):
    """Serves gateways on one listening socket until `stop`.

    A subclass says what a message means and what one step of work is; its methods are called from the loop.
    """

    def __init__(
        self,
        listener: socket.socket,
        decoder: msgspec.msgpack.Decoder[Incoming],
        limits: ServerLimits | None = None,
    ) -> None:
        listener.setblocking(False)
        self.on_heartbeat: Callable[[], None] = lambda: None  # called with every heartbeat
        self.door: Door | None = None  # what peers have to show; None: any that can connect may talk
        self.is_draining = False  # after `stop`: new requests are to be rejected
        self._listener = listener
        self._decoder = decoder
        self._limits = limits or ServerLimits()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._connections: dict[socket.socket, Connection[Incoming]] = {}
        self._newcomers: list[Newcomer] = []  # in the order in which they came
        self._numbers = itertools.count()
        self._next_heartbeat_s = 0.0
        self._stop_requested = False
        self._drain_limit_s = self._limits.drain_limit_s
        self._drain_until_s = float("inf")

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether a request is unfinished: steps are computed until none is."""

    @abstractmethod
    def close(self) -> None:
        """Release what serving needed; after `run`."""

    @abstractmethod
    def _greet(self, connection: Connection[Incoming]) -> None:
        """Send the first messages on a new connection; a heartbeat follows."""

    @abstractmethod
    def _handle(self, connection: Connection[Incoming], message: Incoming) -> None:
        """Take one message."""

    @abstractmethod
    def _step(self) -> None:
        """Compute one step and send what it gave."""

    @abstractmethod
    def _heartbeat(self) -> msgspec.Struct:
        """The heartbeat, with a snapshot of all counters."""

    @abstractmethod
    def _cancel_all(self, connection: Connection[Incoming]) -> int:
        """Cancel the requests of a gateway that has gone; returns how many there were."""

    def _idle(self) -> float:
        """There is no work: do what is due in the background; the seconds that the loop may wait."""
        return float("inf")

    def _abandon(self) -> None:  # optional
        """The drain limit has passed: tell gateways that unfinished requests end here."""

    def stop(self, drain_limit_s: float | None = None) -> None:
        """Accept nothing more, finish what runs, return from `run`. May be called in a signal handler.

        What runs for longer than the limit is abandoned.
        """
        if drain_limit_s is not None:
            self._drain_limit_s = drain_limit_s
        self._stop_requested = True

    def run(self) -> None:
        """Serve until `stop`. Raises what a step raised; then, too, all connections are closed."""
        try:
            while not self._is_finished():
                self._turn()
            self._abandon()
            self._flush()
        finally:
            self._close()

    def _send(self, connection: Connection[Incoming], message: msgspec.Struct) -> None:
        """Send a message. A connection that cannot take it is dropped; one that was dropped ignores it."""
        try:
            frame = encode_message(message)
        except FrameError as error:
            self._drop(connection, str(error))
        else:
            self._send_frame(connection, frame)

    def _broadcast(self, message: msgspec.Struct) -> None:
        """Send a message to every gateway."""
        frame = encode_message(message)
        for connection in list(self._connections.values()):
            self._send_frame(connection, frame)

    def _is_finished(self) -> bool:
        if not self.is_draining:
            return False
        return not self.has_work or time.monotonic() >= self._drain_until_s

    def _turn(self) -> None:
        """One turn of the loop."""
        if self._stop_requested and not self.is_draining:
            self._poll(0.0)  # what was sent before is still served
            self._begin_drain()
        if self.has_work:
            self._poll(0.0)
        else:
            self._poll(max(0.0, min(self._idle(), self._next_heartbeat_s - time.monotonic())))
        while self._newcomers and time.monotonic() >= self._newcomers[0].deadline_s:
            self._turn_away(self._newcomers[0], f"it did not show who it is within {ADMISSION_LIMIT_S:g} s")
        if self.has_work:
            self._step()
        if time.monotonic() >= self._next_heartbeat_s:
            self._next_heartbeat_s = time.monotonic() + self._limits.heartbeat_s
            self._broadcast(self._heartbeat())
            self.on_heartbeat()

    def _poll(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
                continue
            if isinstance(key.data, Newcomer):
                if key.data in self._newcomers:  # one that came in this turn may have displaced it
                    self._advance(key.data)
                continue
            connection = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    connection.flush()
                    self._watch(connection)
                if events & selectors.EVENT_READ:
                    self._read(connection)
            except ConnectionEnded as error:
                self._drop(connection, str(error))

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:  # the peer has gone already
            return
        try:
            if sock.family != socket.AF_UNIX:
                _tune(sock)
            newcomer = None if self.door is None else self.door.greet(sock, f"{address[0]}:{address[1]}")
        except OSError:  # the same
            sock.close()
            return
        if newcomer is None:
            self._connect(sock)
            return
        if len(self._newcomers) == MAX_NEWCOMERS:
            self._turn_away(self._newcomers[0], "others come")
        self._newcomers.append(newcomer)
        self._selector.register(newcomer.sock, newcomer.events, newcomer)
        self._advance(newcomer)

    def _advance(self, newcomer: Newcomer) -> None:
        """A newcomer has sent something, or can be sent something."""
        try:
            is_admitted = newcomer.advance()
        except ConnectionEnded as error:
            self._turn_away(newcomer, str(error))
            return
        if is_admitted:
            self._forget(newcomer)
            self._connect(newcomer.sock)
        elif self._selector.get_key(newcomer.sock).events != newcomer.events:
            self._selector.modify(newcomer.sock, newcomer.events, newcomer)

    def _turn_away(self, newcomer: Newcomer, reason: str) -> None:
        self._forget(newcomer)
        newcomer.sock.close()
        if reason != LEFT:
            logger.warning("the connection from %s was refused: %s", newcomer.peer, reason)

    def _forget(self, newcomer: Newcomer) -> None:
        self._newcomers.remove(newcomer)
        self._selector.unregister(newcomer.sock)

    def _connect(self, sock: socket.socket) -> None:
        connection = Connection(
            sock,
            next(self._numbers),
            self._decoder,
            max_buffered_bytes=self._limits.max_buffered_bytes,
            stall_limit_s=self._limits.stall_limit_s,
        )
        self._connections[sock] = connection
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._greet(connection)
        self._send(connection, self._heartbeat())

    def _read(self, connection: Connection[Incoming]) -> None:
        try:
            messages = connection.receive()
        except (FrameError, msgspec.MsgspecError) as error:
            # A decoding error names a path and types, never a value: safe to log.
            self._drop(connection, f"sent a malformed frame: {error}")
            return
        for message in messages:
            if connection.sock not in self._connections:  # dropped by the answer to an earlier message
                return
            self._handle(connection, message)

    def _send_frame(self, connection: Connection[Incoming], frame: bytes) -> None:
        if connection.sock not in self._connections:
            return
        try:
            connection.send(frame)
            self._watch(connection)
        except ConnectionEnded as error:
            self._drop(connection, str(error))

    def _watch(self, connection: Connection[Incoming]) -> None:
        """Wait for the socket to be writable only while bytes wait to be written."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_outgoing else 0)
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, connection)

    def _drop(self, connection: Connection[Incoming], reason: str) -> None:
        """Close a connection and cancel its requests."""
        if self._connections.pop(connection.sock, None) is None:
            return
        self._selector.unregister(connection.sock)
        connection.close()
        num_requests = self._cancel_all(connection)
        logger.info("connection %d ended (%s); %d requests aborted", connection.number, reason, num_requests)

    def _begin_drain(self) -> None:
        self.is_draining = True
        self._drain_until_s = time.monotonic() + self._drain_limit_s
        self._selector.unregister(self._listener)
        self._listener.close()
        logger.info("draining")

    def _flush(self) -> None:
        """Let the last bytes out."""
        deadline_s = time.monotonic() + _FLUSH_LIMIT_S
        while any(c.has_outgoing for c in self._connections.values()) and time.monotonic() < deadline_s:
            self._poll(0.1)

    def _close(self) -> None:
        self._listener.close()
        for sock in (*self._connections, *(newcomer.sock for newcomer in self._newcomers)):
            sock.close()
        self._connections.clear()
        self._selector.close()


def _tune(sock: socket.socket) -> None:
    """Send small frames at once, and notice a peer whose machine is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_LIMIT_MS)

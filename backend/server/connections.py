"""A gateway's connection as a server's loop sees it: non-blocking, bounded in both directions."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Generic, TypeVar

import msgspec

from backend.errors import EngineError
from backend.server.wire import FrameReader

_RECEIVE_BYTES = 1 << 18
_WOULD_BLOCK = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError

Incoming = TypeVar("Incoming")


class ConnectionEnded(EngineError):
    """The peer has closed its end, or reads so slowly that it must be dropped."""


class Connection(Generic[Incoming]):
    """Frames in and out of a non-blocking socket."""

    def __init__(
        self,
        sock: socket.socket,
        number: int,
        decoder: msgspec.msgpack.Decoder[Incoming],
        *,
        max_buffered_bytes: int,
        stall_limit_s: float,
    ) -> None:
        """`stall_limit_s`: how long the peer may read nothing while bytes wait for it."""
        sock.setblocking(False)
        self.sock = sock
        self.number = number
        self._decoder = decoder
        self._max_buffered_bytes = max_buffered_bytes
        self._stall_limit_s = stall_limit_s
        self._reader = FrameReader()
        self._outgoing = bytearray()
        self._progress_s = time.monotonic()

    @property
    def has_outgoing(self) -> bool:
        """Whether bytes wait for the peer to read."""
        return bool(self._outgoing)

    def receive(self) -> list[Incoming]:
        """Messages that have arrived.

        Raises ConnectionEnded at the end of the stream, FrameError or msgspec.MsgspecError for bytes that are
        no message.
        """
        try:
            data = self.sock.recv(_RECEIVE_BYTES)  # more than a TLS record: none stays in OpenSSL
        except _WOULD_BLOCK:
            return []
        except OSError as error:
            raise ConnectionEnded(str(error)) from None
        if not data:
            raise ConnectionEnded("the gateway closed the connection")
        return [self._decoder.decode(body) for body in self._reader.feed(data)]

    def send(self, frame: bytes) -> None:
        """Queue a frame and write what the socket takes. Raises ConnectionEnded."""
        if len(self._outgoing) > self._max_buffered_bytes:
            raise ConnectionEnded(f"{len(self._outgoing)} bytes wait to be read; the gateway is too slow")
        if not self._outgoing:
            self._progress_s = time.monotonic()
        self._outgoing += frame
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes. Raises ConnectionEnded."""
        if not self._outgoing:
            return
        try:
            num_sent = self.sock.send(self._outgoing)
        except _WOULD_BLOCK:
            num_sent = 0
        except OSError as error:
            raise ConnectionEnded(str(error)) from None
        if num_sent:
            del self._outgoing[:num_sent]
            self._progress_s = time.monotonic()
        elif time.monotonic() - self._progress_s > self._stall_limit_s:
            raise ConnectionEnded(f"the gateway read nothing for {self._stall_limit_s:g} s")

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

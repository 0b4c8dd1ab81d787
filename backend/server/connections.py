"""One gateway's connection as the engine's loop sees it: non-blocking, bounded in both directions."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

from backend.errors import EngineError
from backend.server.framing import FrameReader, encode_frame
from backend.server.messages import FromEngine, ToEngine

_RECEIVE_BYTES = 1 << 18


class ConnectionEnded(EngineError):
    """The peer closed its end, or reads so slowly that it must be dropped."""


class Connection:
    """Frames in and out of a non-blocking socket."""

    def __init__(
        self, sock: socket.socket, number: int, max_buffered_bytes: int, stall_limit_s: float
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.number = number
        self._max_buffered_bytes = max_buffered_bytes
        self._stall_limit_s = stall_limit_s
        self._reader = FrameReader()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._outgoing = bytearray()
        self._progress_s = time.monotonic()

    @property
    def has_outgoing(self) -> bool:
        """True while bytes wait for the peer to read."""
        return bool(self._outgoing)

    def receive(self) -> list[ToEngine]:
        """Messages that have arrived.

        Raises ConnectionEnded at the end of the stream; FrameError or msgspec.MsgspecError for bytes that are
        no message.
        """
        try:
            data = self.sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionEnded(str(error)) from None
        if not data:
            raise ConnectionEnded("the gateway closed the connection")
        return [self._decoder.decode(body) for body in self._reader.feed(data)]

    def send(self, body: bytes) -> None:
        """Queue one encoded message and write what the socket takes. Raises ConnectionEnded."""
        if len(self._outgoing) > self._max_buffered_bytes:
            raise ConnectionEnded(f"{len(self._outgoing)} bytes wait to be read; the gateway is too slow")
        if not self._outgoing:
            self._progress_s = time.monotonic()
        self._outgoing += encode_frame(body)
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes. Raises ConnectionEnded."""
        if not self._outgoing:
            return
        try:
            num_sent = self.sock.send(self._outgoing)
        except BlockingIOError:
            num_sent = 0
        except OSError as error:
            raise ConnectionEnded(str(error)) from None
        if num_sent:
            del self._outgoing[:num_sent]
            self._progress_s = time.monotonic()
        elif time.monotonic() - self._progress_s > self._stall_limit_s:
            raise ConnectionEnded(f"the gateway read nothing for {self._stall_limit_s:g} s")

    def close(self) -> None:
        """Give the socket back."""
        self.sock.close()


def listen(path: Path) -> socket.socket:
    """A listening Unix socket that only this user may open; replaces what a dead process left there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(64)
    return listener


def encode(message: FromEngine) -> bytes:
    """A message's body."""
    return _ENCODER.encode(message)


_ENCODER = msgspec.msgpack.Encoder()

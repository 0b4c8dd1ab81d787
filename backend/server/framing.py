"""Frames on a Unix socket: a 4-byte big-endian length, then that many bytes. Content is opaque."""

from __future__ import annotations

from backend.errors import FrameError

HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 * 1024 * 1024


def encode_frame(body: bytes) -> bytes:
    """Header and `body` in one piece. Raises FrameError when the body exceeds MAX_FRAME_BYTES."""
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(
            f"a message of {len(body)} bytes exceeds {MAX_FRAME_BYTES}; send fewer tokens at once"
        )
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameReader:
    """Cuts a byte stream into frames; holds at most one incomplete frame."""

    __slots__ = ("_buffer", "_max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max_frame_bytes = max_frame_bytes

    @property
    def num_pending_bytes(self) -> int:
        """Bytes of an incomplete frame that wait for the rest."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """The bodies that `data` completes, in order.

        Raises FrameError at a length above the limit: the stream is lost, close the connection.
        """
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            body_start = start + HEADER_BYTES
            length = int.from_bytes(buffer[start:body_start], "big")
            if length > self._max_frame_bytes:
                raise FrameError(
                    f"a frame announces {length} bytes, more than {self._max_frame_bytes}; close it"
                )
            if len(buffer) < body_start + length:
                break
            frames.append(bytes(buffer[body_start : body_start + length]))
            start = body_start + length
        if start:
            del buffer[:start]
        return frames

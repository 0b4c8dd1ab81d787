"""What engine and encoder processes have in common on a socket: frames, and rejections with a typed reason.

A frame is a 4-byte big-endian length and that many bytes: one message, a msgpack map with a type tag. Never
pickle. The messages are in engine_messages.py and encoder_messages.py.
"""

from __future__ import annotations

import msgspec

from backend.errors import (
    AdapterError,
    AdapterExists,
    AdapterGone,
    EngineError,
    FrameError,
    PromptTooLong,
    QueueFull,
    RejectReason,
    RequestError,
)

HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 * 1024 * 1024

_ENCODER = msgspec.msgpack.Encoder()


class Rejected(msgspec.Struct, tag="rejected", frozen=True):
    """Process → gateway: the request, or the call, with this id failed; nothing else follows for it."""

    request_id: str
    reason: RejectReason
    message: str
    retry_after_s: float = 0.0  # with "queue_full"
    param: str | None = None  # the API field at fault

    @classmethod
    def from_error(cls, request_id: str, error: RequestError | AdapterError | QueueFull) -> Rejected:
        """The message for an error; `to_error` is the inverse."""
        return cls(
            request_id,
            error.reason,
            str(error),
            error.retry_after_s if isinstance(error, QueueFull) else 0.0,
            error.param if isinstance(error, RequestError) else None,
        )

    def to_error(self) -> EngineError:
        """The exception that the process raised."""
        kind = _ERRORS[self.reason]
        if issubclass(kind, QueueFull):
            return kind(self.message, self.retry_after_s)
        if issubclass(kind, RequestError):
            return kind(self.message, self.param)
        return kind(self.message)


_ERRORS: dict[RejectReason, type[RequestError | AdapterError | QueueFull]] = {
    kind.reason: kind
    for kind in (RequestError, PromptTooLong, AdapterGone, QueueFull, AdapterError, AdapterExists)
}


def encode_message(message: msgspec.Struct) -> bytes:
    """One message as a frame. Raises FrameError when it exceeds MAX_FRAME_BYTES."""
    return encode_frame(_ENCODER.encode(message))


def encode_frame(body: bytes) -> bytes:
    """Header and `body` in one piece. Raises FrameError when the body exceeds MAX_FRAME_BYTES."""
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(
            f"a message of {len(body)} bytes exceeds {MAX_FRAME_BYTES}; send fewer tokens at once"
        )
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameReader:
    """Splits a byte stream into frames; holds at most one incomplete frame."""

    __slots__ = ("_buffer", "_max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max_frame_bytes = max_frame_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """The bodies of the frames that `data` completes, in order.

        Raises FrameError at a length above the limit: the stream cannot be continued, close the connection.
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

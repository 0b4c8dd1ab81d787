"""AWS's binary event streams: bytes, cut anywhere → events as JSON, {type: payload}."""

from __future__ import annotations

import struct

import msgspec
from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError

from gateway.providers.upstream.transport import ConnectionBroken

MEDIA_TYPE = "application/vnd.amazon.eventstream"


class AwsEventReader:
    """Takes bytes as they arrive, returns complete events. Checksums and lengths are botocore's to check."""

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes. Raises ConnectionBroken for damaged ones."""
        self._buffer.add_data(chunk)
        try:
            return [_event(message) for message in self._buffer]
        except (ParserError, struct.error, KeyError, UnicodeDecodeError) as error:
            raise ConnectionBroken(f"its event stream is damaged: {type(error).__name__}") from error

    def close(self) -> list[bytes]:
        """Nothing: an event that is not complete has no meaning."""
        return []


def _event(message: EventStreamMessage) -> bytes:
    headers = message.headers
    if headers.get(":message-type") == "error":
        payload = msgspec.json.encode({"message": headers.get(":error-message", "")})
        return b'{"%b":%b}' % (b"error", payload)
    kind = headers.get(":event-type") or headers.get(":exception-type") or ""
    return b"{%b:%b}" % (msgspec.json.encode(str(kind)), message.payload or b"{}")

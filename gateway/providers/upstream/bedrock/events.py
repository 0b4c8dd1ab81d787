"""AWS's binary event streams: bytes, cut anywhere → events as JSON, {type: payload}."""

from __future__ import annotations

import struct
from zlib import crc32

import msgspec
from botocore.eventstream import EventStreamHeaderParser

from gateway.providers.upstream.transport import ConnectionBroken

MEDIA_TYPE = "application/vnd.amazon.eventstream"
MAX_MESSAGE_BYTES = 24 << 20
"""The specification's limit of a message."""
_PRELUDE = struct.Struct("!III")  # bytes in all, bytes of the headers, checksum of these two
_CHECKSUM = struct.Struct("!I")  # of all before it, at the end
_MAX_KNOWN_HEADERS = 64


class AwsEventReader:
    """Takes bytes as they arrive, returns complete events. A message costs what its checksums do.

    Headers are botocore's to parse, once: those of most messages in a stream are the same.
    """

    def __init__(self) -> None:
        self._unread = bytearray()
        self._heads: dict[bytes, tuple[bytes, bytes]] = {}  # headers → an event's bytes around its payload

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes. Raises ConnectionBroken for damaged ones."""
        self._unread += chunk
        events: list[bytes] = []
        while len(self._unread) >= _PRELUDE.size:
            num_bytes, num_head_bytes, checksum = _PRELUDE.unpack_from(self._unread)
            payload_at = _PRELUDE.size + num_head_bytes
            if crc32(self._unread[:8]) != checksum or not payload_at + 4 <= num_bytes <= MAX_MESSAGE_BYTES:
                raise ConnectionBroken("its event stream is damaged: a message's prelude")
            if len(self._unread) < num_bytes:
                break
            message = bytes(self._unread[:num_bytes])
            del self._unread[:num_bytes]
            if crc32(message[:-4]) != _CHECKSUM.unpack(message[-4:])[0]:
                raise ConnectionBroken("its event stream is damaged: a message's checksum")
            before, after = self._head(message[_PRELUDE.size : payload_at])
            events.append(before + (message[payload_at:-4] or b"{}") + after)
        return events

    def close(self) -> list[bytes]:
        """Nothing: an event that is not complete has no meaning."""
        return []

    def _head(self, raw: bytes) -> tuple[bytes, bytes]:
        found = self._heads.get(raw)
        if found is None:
            try:
                found = _around_payload(EventStreamHeaderParser().parse(raw))
            except (struct.error, KeyError, UnicodeDecodeError) as error:
                raise ConnectionBroken("its event stream is damaged: a message's headers") from error
            if len(self._heads) < _MAX_KNOWN_HEADERS:
                self._heads[raw] = found
        return found


def _around_payload(headers: dict[str, object]) -> tuple[bytes, bytes]:
    if headers.get(":message-type") == "error":  # has no payload
        message = msgspec.json.encode(str(headers.get(":error-message", "")))
        return b'{"error":{"message":%b},"payload":' % message, b"}"
    kind = headers.get(":event-type") or headers.get(":exception-type") or ""
    return b"{%b:" % msgspec.json.encode(str(kind)), b"}"

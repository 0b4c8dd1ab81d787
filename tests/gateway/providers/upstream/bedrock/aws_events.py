"""AWS's binary event streams, written from the specification: prelude, headers, payload, checksums."""

from __future__ import annotations

import json
import struct
import zlib


def message(payload: bytes, **headers: str) -> bytes:
    """One message; `message_type="event"` is the header `:message-type`."""
    encoded = b""
    for name, value in headers.items():
        raw_name, raw = f":{name.replace('_', '-')}".encode(), value.encode()
        encoded += struct.pack("!B", len(raw_name)) + raw_name + struct.pack("!BH", 7, len(raw)) + raw
    prelude = struct.pack("!II", 16 + len(encoded) + len(payload), len(encoded))
    prelude += struct.pack("!I", zlib.crc32(prelude))
    whole = prelude + encoded + payload
    return whole + struct.pack("!I", zlib.crc32(whole))


def event(kind: str, **members: object) -> bytes:
    payload = json.dumps({**members, "p": "abc"}).encode()
    return message(payload, event_type=kind, content_type="application/json", message_type="event")


def exception(kind: str, text: str) -> bytes:
    payload = json.dumps({"message": text}).encode()
    return message(payload, exception_type=kind, content_type="application/json", message_type="exception")

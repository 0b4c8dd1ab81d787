"""Texts that the gateway gives to callers, and that no one can make up or change."""

from __future__ import annotations

import base64
import binascii
import hmac

from gateway.auth import KeyRing

SIGNATURE_BYTES = 16


def sign(kind: str, data: bytes, keys: KeyRing) -> str:
    """Data as a header's value; what is signed as one kind is nothing as another."""
    return base64.urlsafe_b64encode(_signature(kind, data, keys) + data).decode()


def signed(kind: str, text: str, keys: KeyRing) -> bytes | None:
    """The data; None for what `sign` has not written."""
    try:
        found = base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    signature, data = found[:SIGNATURE_BYTES], found[SIGNATURE_BYTES:]
    return data if hmac.compare_digest(signature, _signature(kind, data, keys)) else None


def _signature(kind: str, data: bytes, keys: KeyRing) -> bytes:
    return keys.signature(kind.encode() + b"\0" + data)[:SIGNATURE_BYTES]

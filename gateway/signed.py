"""Texts that the gateway gives to callers, and that no one can make up or change."""

from __future__ import annotations

import base64
import binascii
import hmac

from gateway.auth import KeyRing

SIGNATURE_BYTES = 16


def sign(kind: str, data: bytes, keys: KeyRing) -> str:
    """Data as a header's value; what is signed as one kind is nothing as another."""
    signature = keys.signature(_named(kind, data))[:SIGNATURE_BYTES]
    return base64.urlsafe_b64encode(signature + data).decode()


def signed(kind: str, text: str, keys: KeyRing) -> bytes | None:
    """The data; None for what `sign` has not written."""
    try:
        found = base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    signature, data = found[:SIGNATURE_BYTES], found[SIGNATURE_BYTES:]
    good = (each[:SIGNATURE_BYTES] for each in keys.signatures(_named(kind, data)))
    return data if any(hmac.compare_digest(signature, each) for each in good) else None


def _named(kind: str, data: bytes) -> bytes:
    return kind.encode() + b"\0" + data

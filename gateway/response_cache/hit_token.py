"""Names a hit by meaning to its caller, who may judge it later."""

from __future__ import annotations

import msgspec

from gateway.auth import KeyRing
from gateway.signed import sign, signed

HEADER = "x-penstock-cache-question"


class HitToken(msgspec.Struct, frozen=True, array_like=True):
    """Which entry was served for which question, to whom."""

    entry: bytes  # its key
    question: bytes  # likewise
    tenant: str
    served_s: int  # UNIX time


def write_hit(token: HitToken, keys: KeyRing) -> str:
    """The header's value."""
    return sign("hit", msgspec.msgpack.encode(token), keys)


def read_hit(text: str, keys: KeyRing) -> HitToken | None:
    """None for what `write_hit` has not written."""
    data = signed("hit", text, keys)
    return None if data is None else msgspec.msgpack.decode(data, type=HitToken)

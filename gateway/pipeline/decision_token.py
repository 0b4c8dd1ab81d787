"""Names a decision to its caller, who may judge it later at any worker or replica with the same API keys."""

from __future__ import annotations

import base64
import binascii

import msgspec

from gateway.auth import KeyRing

HEADER = "x-penstock-decision"
SIGNATURE_BYTES = 12


class DecisionToken(msgspec.Struct, frozen=True, array_like=True):
    """Which model was chosen where, for whom."""

    request_id: str
    place: str  # of the `choose` in the policies, as `routes.auto`
    model: str
    tenant: str


def write_token(token: DecisionToken, keys: KeyRing) -> str:
    """The header's value."""
    data = msgspec.json.encode(token)
    return base64.urlsafe_b64encode(keys.signature(data)[:SIGNATURE_BYTES] + data).decode()


def read_token(text: str, keys: KeyRing) -> DecisionToken | None:
    """None for what `write_token` has not written."""
    try:
        found = base64.urlsafe_b64decode(text)
        signature, data = found[:SIGNATURE_BYTES], found[SIGNATURE_BYTES:]
        if signature != keys.signature(data)[:SIGNATURE_BYTES]:
            return None
        return msgspec.json.decode(data, type=DecisionToken)
    except (binascii.Error, ValueError):
        return None

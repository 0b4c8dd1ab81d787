"""Names a decision to its caller, who may judge it later at any worker or replica with the same API keys."""

from __future__ import annotations

import msgspec

from gateway.auth import KeyRing
from gateway.signed import sign, signed

HEADER = "x-penstock-decision"


class DecisionToken(msgspec.Struct, frozen=True, array_like=True):
    """Which model was chosen where, for whom."""

    request_id: str
    place: str  # of the `choose` in the policies, as `routes.auto`
    model: str
    tenant: str
    decided_s: int  # UNIX time


def write_token(token: DecisionToken, keys: KeyRing) -> str:
    """The header's value."""
    return sign("decision", msgspec.json.encode(token), keys)


def read_token(text: str, keys: KeyRing) -> DecisionToken | None:
    """None for what `write_token` has not written."""
    data = signed("decision", text, keys)
    return None if data is None else msgspec.json.decode(data, type=DecisionToken)

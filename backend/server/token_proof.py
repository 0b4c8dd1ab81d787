"""What a gateway shows an engine of another machine before anything else: that it has the token.

The engine sends a nonce, the gateway an HMAC over it; the token itself never crosses the network.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

NONCE_BYTES = 32
MAX_PROOF_BYTES = 256
_CONTEXT = b"penstock engine 1 "


class Challenge(msgspec.Struct, tag="challenge", frozen=True):
    """Engine → gateway, first frame where a token is asked for."""

    nonce: bytes


class Proof(msgspec.Struct, tag="proof", frozen=True):
    """Gateway → engine, the answer."""

    mac: bytes


class TurnedAway(msgspec.Struct, tag="turned_away", frozen=True):
    """Engine → gateway, last frame: why the connection ends."""

    reason: str


def prove(token: str, challenge: Challenge) -> Proof:
    """The answer of one that has the token."""
    return Proof(hmac.digest(token.encode(), _CONTEXT + challenge.nonce, hashlib.sha256))


def is_proof(proof: Proof, token: str, challenge: Challenge) -> bool:
    """Whether it comes from one that has the token; takes the same time for each wrong answer."""
    return hmac.compare_digest(proof.mac, prove(token, challenge).mac)

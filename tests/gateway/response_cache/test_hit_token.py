"""The token that names a hit by meaning."""

from __future__ import annotations

from gateway.auth import KeyRing
from gateway.response_cache.hit_token import HitToken, read_hit, write_hit
from gateway.routing.decision_token import read_token

KEYS = KeyRing(("one",))
TOKEN = HitToken(b"\x00" * 32, b"\xff" * 32, "a" * 64, 1_900_000_000)


def test_a_hit_is_read_as_it_was_written_and_as_nothing_else() -> None:
    text = write_hit(TOKEN, KEYS)
    assert len(text) <= 512 and read_hit(text, KEYS) == TOKEN
    assert read_token(text, KEYS) is None

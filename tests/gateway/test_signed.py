"""Signed texts: what is made up, changed or of another kind is nothing."""

from __future__ import annotations

import pytest

from gateway.auth import KeyRing
from gateway.signed import sign, signed

KEYS = KeyRing(("one", "two"))
TEXT = sign("hit", b"data \xff", KEYS)


def test_what_was_signed_comes_back() -> None:
    assert signed("hit", TEXT, KEYS) == b"data \xff"


@pytest.mark.parametrize(
    "text", ["", "AAAA", "é", "\ud800", TEXT[:-4], "A" + TEXT[1:], TEXT + "AAAA", TEXT + "!"]
)
def test_what_was_not_signed_is_nothing(text: str) -> None:
    assert signed("hit", text, KEYS) is None


def test_another_kind_or_other_keys_are_nothing() -> None:
    assert signed("decision", TEXT, KEYS) is None and signed("hit", TEXT, KeyRing(("one",))) is None

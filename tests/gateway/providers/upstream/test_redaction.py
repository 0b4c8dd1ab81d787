"""Secrets are found in every encoding and in bounded time."""

from __future__ import annotations

import base64
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.providers.upstream.redaction import Redactor

KEY = "sk-proj/4+a=B_x.9"
REDACTOR = Redactor(KEY, "")
PERCENT_ENCODED = quote(KEY, safe="")
FORMS = [
    KEY,
    KEY.replace("/", "\\/"),
    KEY.replace("-", "\\u002d").replace("=", "\\\\u003D"),
    PERCENT_ENCODED,
    PERCENT_ENCODED.replace("%2B", "%2b").replace("s", "%73"),
]
SURROUNDINGS = st.text(st.characters(exclude_characters="\\"), max_size=12)


@given(SURROUNDINGS, SURROUNDINGS)
def test_the_key_alone_is_replaced(before: str, after: str) -> None:
    for form in FORMS:
        assert REDACTOR.clean(before + form + after, 1000) == f"{before}***{after}"


@given(st.text(max_size=12), st.text(max_size=12))
def test_base64_shows_nothing_of_the_key(before: str, after: str) -> None:
    plain = f"{before}{KEY}{after}".encode()
    for text in (base64.b64encode(plain).decode(), base64.urlsafe_b64encode(plain).decode()):
        shown = REDACTOR.clean(text, 1000)
        assert "***" in shown
        assert len(shown) <= len(text) - len(KEY) + 3


@given(st.text(max_size=300), st.integers(0, 100))
def test_other_text_is_only_cut(text: str, limit: int) -> None:
    assert REDACTOR.clean(text, limit) == text[:limit]
    assert Redactor("", "").clean(text, limit) == text[:limit]


def test_every_secret_is_replaced() -> None:
    redactor = Redactor("key", "pass", "user:pass")
    assert redactor.clean("a key, a pass, user:pass", 100) == "a ***, a ***, ***"


def test_what_is_too_long_to_search_is_not_shown() -> None:
    assert REDACTOR.clean("x" * 10_000_000 + KEY, 10) == "***"


@pytest.mark.parametrize("unit", ["\\", "s", "sk-", "%", "\\u", "k", "%73%6b"])
def test_hostile_text_takes_linear_time(unit: str) -> None:
    text = unit * (256 * 1024 // len(unit))
    started_s = time.process_time()
    assert Redactor("sk-" * 30 + "x").clean(text, 10) == text[:10]
    assert time.process_time() - started_s < 5

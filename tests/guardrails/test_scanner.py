"""However a text is cut, the client gets what the whole text would give."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from guardrails.masking import Masking
from guardrails.personal_data import KINDS

PIECES = [
    "bob@example.com", "a.b+c@mail.example.co.uk", "not@an address", "4111 1111 1111 1111",
    "4111-1111-1111-1112", "5500005555555559", "DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819",
    "+44 20 7946 0958", "(555) 123-4567", "123-45-6789", "8.8.8.8", "v1.2.3.4", "10.0.0.1", "[EMAIL_1]",
    "sk-proj-abcdefghijklmnopqrstuvwx", "AKIAIOSFODNN7EXAMPLE", "[EMAIL_9]", "[EMAIL", "[", "0", "1-2", "é",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijklmnop1234", "🎉", "-----BEGIN",
    "-----BEGIN PRIVATE KEY-----\nMIIBVgIBADANBgkq\n-----END PRIVATE KEY-----",
]  # fmt: skip
SEPARATORS = [" ", ", ", "\n", ".", "-", "x"]
TEXTS = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(max_size=6), st.sampled_from(SEPARATORS)),
    max_size=12,
).map("".join)


def restored(text: str, cuts: list[int]) -> str:
    masking = Masking(KINDS, "mask")
    masking.mask("bob@example.com")
    scanner = masking.restorer(screens_answers=True)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]
    return "".join(map(scanner.feed, pieces)) + scanner.finish()


@settings(max_examples=400)
@given(TEXTS, st.lists(st.integers(0, 1000), max_size=20))
def test_cuts_change_nothing(text: str, cuts: list[int]) -> None:
    assert restored(text, cuts) == restored(text, [])


def test_single_characters_change_nothing() -> None:
    draw = random.Random(1)
    for _ in range(60):
        text = draw.choice([" ", ", ", "", "-"]).join(draw.choices(PIECES, k=6))
        assert restored(text, list(range(len(text)))) == restored(text, [])


def test_the_test_notices_a_scanner_that_holds_nothing_back() -> None:
    masking = Masking(KINDS, "mask")

    def without_hold_back(pieces: list[str]) -> str:
        return "".join(masking.mask(piece) for piece in pieces)

    assert "bob@" in without_hold_back(["bob@", "example.com"])


def test_plain_text_is_held_back_by_a_word_at_most() -> None:
    masking = Masking(KINDS, "mask")
    scanner = masking.restorer(screens_answers=True)
    sent = ""
    text = "The quick brown fox jumps over the lazy dog, twice a day. "
    for end, char in enumerate(text, 1):
        sent += scanner.feed(char)
        assert len(text[:end]) - len(sent) <= len("quick") + 1
    assert sent == text

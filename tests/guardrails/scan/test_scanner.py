"""However a text is cut, the client gets what the whole text would give."""

from __future__ import annotations

import itertools
import random

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guardrails.checks.personal_data.patterns import KINDS, PatternFinder
from guardrails.masking import Masking
from guardrails.scan.scanner import Blocked, Rule, Scanner, scan

PIECES = [
    "bob@example.com", "a.b+c@mail.example.co.uk", "josé@example.org", "not@an address", "git@github.com",
    "4111 1111 1111 1111", "4111-1111-1111-1112", "5500005555555559", "card", "IBAN",
    "DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819", "+44 20 7946 0958", "(555) 123-4567",
    "415.555.2671x12", "020 7946 0958", "123-45-6789", "8.8.8.8", "v1.2.3.4", "10.0.0.1", "8.8.8.8:53",
    "2a00:1450:4001:81b::200e", "12:34:56", "00:1B:44:11:3A:B7", "sk-proj-abcdefghijklmnopqrstuvwx",
    "AKIAIOSFODNN7EXAMPLE", "hf_abcdefghijklmnopqrstuvwx", "\\n", "password=", "password: ",
    "my password is ", "hunter2!", "api_key", '"', "Bearer ", "a8Xk2mN9qL4wZ7vB",
    "https://bob:s3cr3t@example.org/", "://", "@", "passport", "phone", "call ", "account number ",
    "12345678", "AB 12 34 56 C", "12345678Z", "X-1234567-L", "943 476 5919", "national id ", "ABCPE1234F",
    "RCCMNL83S18D969H", "52998224725", "529.982.247-25", "1 84 12 76 451 089 46",
    "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "[EMAIL_1]",
    "[EMAIL_9]", "[EMAIL", "[", "0", "1-2", "é", "邮箱",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijklmnop1234", "🎉", "-----BEGIN", "PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nMIIBVgIBADANBgkq\n-----END PRIVATE KEY-----", "A", "ABC", "x", "+", "(",
    "00", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nMIIBVgIBADANBgkqhkiG9w0B\nAQEF",
    "-----END", "-----BEGIN PRIVATE KEY-----\\nMIIBVgIBADANBgkqhkiG\\nAB==\\n-----END PRIVATE KEY-----",
    "a" * 70, "1" * 40,
]  # fmt: skip
SEPARATORS = [" ", " ", ", ", "\n", ".", "-", "x", ":", "="]
TEXTS = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(max_size=6), st.sampled_from(SEPARATORS)),
    max_size=12,
).map("".join)
CUTS = st.lists(st.integers(0, 1000), max_size=20)


def pieces(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def fed(scanner: Scanner, text: str, cuts: list[int]) -> str:
    """What is sent, and what it ends with."""
    sent = ""
    try:
        for piece in pieces(text, cuts):
            sent += scanner.feed(piece)
        return sent + scanner.finish()
    except Blocked as blocked:
        return f"{sent}{blocked.sent}<{blocked.kind}>"


def restored(text: str, cuts: list[int], action: str = "mask") -> str:
    masking = Masking(KINDS, "mask")
    masking.mask("bob@example.com")
    masking._action = action  # type: ignore[assignment]
    return fed(masking.restorer(screens_answers=True), text, cuts)


@settings(max_examples=400, deadline=None)
@given(TEXTS, CUTS)
@example("12345678 12345678Z 4111 1111 1111 1111", [])
def test_cuts_change_nothing(text: str, cuts: list[int]) -> None:
    assert restored(text, cuts) == restored(text, [])


@settings(max_examples=200, deadline=None)
@given(TEXTS, CUTS)
def test_cuts_do_not_change_where_a_block_ends_the_text(text: str, cuts: list[int]) -> None:
    whole = restored(text, [], "block")
    assert restored(text, cuts, "block") == whole
    if whole.endswith(">") and not text.endswith(">"):
        assert text.replace("[EMAIL_1]", "bob@example.com").startswith(whole.rpartition("<")[0])


@pytest.mark.parametrize("separator", [" ", ", ", "", "-", "\n"])
def test_single_characters_change_nothing(separator: str) -> None:
    draw = random.Random(separator)
    for _ in range(60):
        text = separator.join(draw.choices(PIECES, k=6))
        assert restored(text, list(range(len(text)))) == restored(text, [])


@given(st.text("abc-1 "), CUTS)
def test_cuts_do_not_matter_to_a_pattern(text: str, cuts: list[int]) -> None:
    rule = Rule(regex.compile(r"a(?:bc)*1|b-+c|\bcc\b"), lambda match: None if match[0] == "a1" else "#")
    assert fed(Scanner(rule), text, cuts) == scan(rule, text)


def test_long_tokens_and_long_keys_change_nothing() -> None:
    blob = "aGVsbG8" * 2000
    text = f"{blob}-bob@example.com-{blob},-----BEGIN PRIVATE KEY-----\n" + f"{blob[:64]}\n" * 300 + "end."
    cuts = list(range(0, len(text), 97))
    assert restored(text, [cut for cut in cuts if cut < 1000 * 97]) == restored(text, [])


def test_the_tests_notice_a_scanner_that_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PatternFinder, "open_from", lambda self, text, start: len(text))
    with pytest.raises(AssertionError):
        test_single_characters_change_nothing(" ")
    with pytest.raises(AssertionError):
        test_cuts_change_nothing()


def test_plain_text_is_held_back_by_a_word_at_most() -> None:
    masking = Masking(KINDS, "mask")
    scanner = masking.restorer(screens_answers=True)
    sent = ""
    text = "The quick brown fox jumps over the lazy dog, twice a day. "
    for end, char in enumerate(text, 1):
        sent += scanner.feed(char)
        assert len(text[:end]) - len(sent) <= len("quick") + 1
    assert sent == text

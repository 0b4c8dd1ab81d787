"""What is replaced in a JSON document, whole or in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from guardrails.checks.patterns import words_rule
from guardrails.masking import Masking
from guardrails.scan.scanner import Rule, Scanner, scan
from guardrails.text.json_text import InJson


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"card": 4111111111111111, "n": 1}', '{"card": "[CARD_1]", "n": 1}'),
        (r'["a \" card: 4111111111111111, x"]', r'["a \" card: [CARD_1], x"]'),
        (r'["\\", 4111111111111111]', r'["\\", "[CARD_1]"]'),
    ],
)
def test_what_takes_a_numbers_place_is_a_string(text: str, expected: str) -> None:
    assert Masking(["card"], "mask").mask(text, in_json=True) == expected


def test_escaped_line_ends_are_no_part_of_a_match() -> None:
    masking = Masking(["person", "email"], "mask")
    text = json.dumps({"text": "Best regards,\nMaria Gonzalez\nbob@example.com"})
    masked = masking.mask(text, in_json=True)
    assert json.loads(masked) == {"text": "Best regards,\n[PERSON_1]\n[EMAIL_1]"}
    assert masking.mask("I am Maria Gonzalez.") == "I am [PERSON_1]."
    assert scan(InJson(words_rule(["acme"], lambda: "#")), r'"\nacme"') == r'"\n#"'


@pytest.mark.parametrize(("text", "expected"), [(r'"J\u00f6rg"', r'"J\u00f6#"'), (r'"\nrg"', r'"\n#"')])
def test_escapes_stay_whole(text: str, expected: str) -> None:
    rule = Rule(regex.compile(r"[a-z0-9]+rg"), lambda match: "#")
    assert scan(InJson(rule), text) == expected


VALUES = st.recursive(st.integers(0) | st.text('"\\123 é'), lambda inner: st.lists(inner, max_size=4))
NUMBERS = Rule(regex.compile(r"(?<!\w)[0-9]{2,}(?!\w)"), lambda match: "[N]")


def changed(pieces: Iterable[str]) -> str:
    scanner = Scanner(InJson(NUMBERS))
    return "".join([*map(scanner.feed, pieces), scanner.finish()])


@given(VALUES, st.integers(0, 200), st.booleans())
def test_a_document_stays_one_however_it_is_cut(value: object, cut: int, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    whole = changed([text])
    json.loads(whole)
    assert changed(text) == changed([text[:cut], text[cut:]]) == whole

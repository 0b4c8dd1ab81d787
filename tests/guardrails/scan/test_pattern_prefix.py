"""The expression for beginnings, against every beginning of generated matches."""

from __future__ import annotations

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from guardrails.scan.pattern_prefix import UnsupportedPattern, beginnings

PATTERNS = [
    r"ab",
    r"(?i)foo-\d{3,5}(?:x|yy)?",
    r"a+b*c?",
    r"(?P<n>a[^b])*?b",
    r"(?:ab){2,3}c",
    r"(?:x(?:y|zz)+){1,2}w",
    r"\p{L}[]a]\x{41}+",
    r"[[:alpha:]]{2}\.|(?-i:Q)u*",
    r"a{2}|b{0}c",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(data=st.data())
def test_every_beginning_of_a_match_matches(pattern: str, data: st.DataObject) -> None:
    python = pattern.replace(r"\p{L}", "[a-z]").replace(r"\x{41}", "A").replace("[[:alpha:]]", "[a-zA-Z]")
    match = data.draw(st.from_regex(python, fullmatch=True, alphabet=st.characters(codec="ascii")))
    end = data.draw(st.integers(0, len(match)))
    assert re2.fullmatch(pattern, match) is not None
    assert re2.fullmatch(beginnings(pattern), match[:end]) is not None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"ab", "b"), (r"ab", "abc"), (r"(?:ab){2}", "aa"), (r"(?:ab){2}", "ababa"), (r"a{2,3}b", "aaaa")],
)
def test_what_begins_no_match_does_not(pattern: str, text: str) -> None:
    assert re2.fullmatch(beginnings(pattern), text) is None


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("^a", "anchor"),
        (r"a\z", "anchor"),
        ("(?m)a", "flag 'm'"),
        ("a)", "unexpected"),
        ("(a", "missing"),
        (r"\Qa\E", "escape each"),
        ("(" * 300 + ")" * 300, "nested"),
    ],
)
def test_what_has_no_place_in_a_stream_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(UnsupportedPattern, match=words.replace("'", ".")):
        beginnings(pattern)

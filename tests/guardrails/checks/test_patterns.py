"""Operators' words and expressions: found alike however a stream is cut, in linear time."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.checks.patterns import LinearRule, words_rule
from guardrails.scan.pattern_prefix import UnsupportedPattern
from guardrails.scan.scanner import Blocked, Replacer, Scanner, scan


def hidden() -> str:
    return "#"


PROJECT = LinearRule(r"(?i)\bproject[ -](?:blue|red)(?:bird)?\b|x{2,4}", hidden)
WORDS = words_rule(["acme", "acme corp", "Straße", "c++"], hidden)


def test_expressions_and_words_are_replaced() -> None:
    assert (
        scan(PROJECT, "On Project Blue, project-redbird; project blues xxxxx") == "On #, #; project blues #x"
    )
    assert scan(WORDS, "ACME Corp, acmes, STRASSE straße, C++.") == "#, acmes, STRASSE #, #."
    assert scan(WORDS, "acme\n  corp") == "#"


@pytest.mark.parametrize("rule", [PROJECT, WORDS], ids=["expression", "words"])
@given(
    parts=st.lists(
        st.sampled_from(
            ["project", " ", "\n", "-", "blue", "red", "bird", "xx", "é", "acme", "corp", "c++", "."]
        ),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 80), max_size=6),
)
def test_cuts_change_nothing(rule: Replacer, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    scanner = Scanner(rule)
    pieces = [scanner.feed(text[a:b]) for a, b in itertools.pairwise(bounds)]
    assert "".join(pieces) + scanner.finish() == scan(rule, text)


def block() -> str:
    raise Blocked("pattern")


@pytest.mark.parametrize(
    "rule",
    [LinearRule(r"\bINT-\d{4,6}\b", block), words_rule(["INT-4711"], block)],
    ids=["expression", "words"],
)
def test_what_stands_before_a_block_is_sent_however_it_is_cut(rule: Replacer) -> None:
    text = "See ticket INT-4711 and more"
    for cut in range(len(text) + 1):
        scanner = Scanner(rule)
        sent = ""
        with pytest.raises(Blocked) as blocked:
            for piece in (text[:cut], text[cut:]):
                sent += scanner.feed(piece)
        assert sent + blocked.value.sent == "See ticket "


def test_what_cannot_begin_a_match_is_not_held_back() -> None:
    scanner = Scanner(PROJECT)
    assert scanner.feed("Nothing here") == "Nothing here"
    assert scanner.feed(" but pro") == " but "
    assert scanner.feed("cess") == "process"


def test_no_input_makes_an_expression_backtrack() -> None:
    rule = LinearRule(r"(?:a+)+b", hidden)
    scanner = Scanner(rule)
    began_s = time.process_time()
    for _ in range(100):
        scanner.feed("a" * 50)
    assert scanner.finish("c") == "a" * 5000 + "c" and time.process_time() - began_s < 5


@pytest.mark.parametrize("pattern", [r"(a)\1", r"a(?=b)", r"a*", r"(?:\pL{1000}){1000}", "["])
def test_expressions_that_are_not_linear_or_empty_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern):
        LinearRule(pattern, hidden)

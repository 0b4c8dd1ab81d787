from __future__ import annotations

import itertools
import random
import sys
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from guardrails.checks.personal_data.patterns import KINDS, PatternFinder
from tests.guardrails.checks.personal_data.samples import Samples


def test_what_is_found_is_disjoint_and_in_order() -> None:
    text = "bob@example.com, 4111 1111 1111 1111 and 8.8.8.8 or +49 30 901820"
    spans = list(PatternFinder(KINDS).spans(text))
    assert [span.kind for span in spans] == ["email", "card", "ip", "phone"]
    assert all(left.end <= right.start for left, right in itertools.pairwise(spans))


def test_a_search_from_behind_a_match_finds_the_rest() -> None:
    text = "password=bob@example.com token: 4111111111111111 x@y.org https://a:b7@c.de/"
    finder = PatternFinder(KINDS)
    spans = list(finder.spans(text))
    for number, span in enumerate(spans):
        assert list(finder.spans(text, span.end)) == spans[number + 1 :]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=300))
def test_no_text_breaks_it(text: str) -> None:
    for span in PatternFinder(KINDS).spans(text):
        assert 0 <= span.start < span.end <= len(text)


def test_no_random_soup_of_what_it_looks_at_breaks_it() -> None:
    draw = random.Random(1)
    alphabet = "0123456789ABCXYZabcx@.:-+() /[]=\\\"'\n\u00a0é中" + chr(sys.maxunicode)
    finder = PatternFinder(KINDS)
    for _ in range(300):
        list(finder.spans("".join(draw.choices(alphabet, k=200))))


def test_types_with_a_fixed_shape_are_found() -> None:
    """Span F1 of at least 0.97 for each."""
    samples, finder = Samples(seed=0), PatternFinder(KINDS)
    for kind in samples.kinds:
        outcomes: Counter[str] = Counter()
        for row in samples.rows(kind, 60):
            (span,) = row["spans"]
            found = list(finder.spans(row["text"]))
            is_found = (span["start"], span["end"], kind) in found
            outcomes.update({"right": is_found, "missed": not is_found, "wrong": len(found) - is_found})
        f1 = 2 * outcomes["right"] / (2 * outcomes["right"] + outcomes["missed"] + outcomes["wrong"])
        assert f1 >= 0.97, (kind, outcomes)

from __future__ import annotations

import random
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guardrails.checks.personal_data.patterns import KINDS, PatternFinder
from tests.guardrails.checks.personal_data.phone_samples import samples
from tests.guardrails.checks.personal_data.technical_lines import LINES, lines
from tests.guardrails.test_scanner import CUTS, restored

PIECES = [
    "555-123-4567", "555.123.4567", "(02) 9876 5432", "0151 29999999", "13812345678", "98765 43210",
    "+49 30 901820", "01.23.45.67.89", "tel ", "Tel.: ", "call me at ", "电话", "order ", "id: ",
    "my number is ",
    "x8487", " x12", " ext. 12", ", extension 3456", " ext", " e", "e", "x", " Durchwahl", "_", "-", ".", "#",
    "/", "(", ")", "0", "00", "12 ", "\n", " and ", ": ", "homePhone=", "call_id=", "是我的", "٠٥٥ ١٢٣",
    "\u2011",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=10).map("".join)


def found(text: str) -> list[str]:
    return [text[span.start : span.end] for span in PatternFinder(KINDS).spans(text) if span.kind == "phone"]


@settings(max_examples=400, deadline=None)
@given(TEXTS, CUTS)
@example("555-123-4567 ext 555-1", [20, 21])
@example("tel 555-123-4567, extension 3456_", [14, 22, 29, 32])
def test_cuts_change_nothing(text: str, cuts: list[int]) -> None:
    assert restored(text, cuts) == restored(text, [])


def test_every_cut_into_two_changes_nothing() -> None:
    draw = random.Random(3)
    for _ in range(60):
        text = "".join(draw.choices(PIECES, k=7))
        whole = restored(text, [])
        assert {restored(text, [cut]) for cut in range(len(text))} <= {whole}


def test_numbers_of_twenty_countries_are_found_in_sentences_of_sixteen_languages() -> None:
    """Each value as a whole."""
    missed = [sample for sample in samples(seed=11, count=600) if found(sample.text) != [sample.number]]
    assert len(missed) <= 6, missed


def test_technical_lines_are_not_flagged() -> None:
    """At most 1 %, by any pattern."""
    finder = PatternFinder(KINDS)
    flagged = [line for line in lines(seed=11, repeats=3) if list(finder.spans(line))]
    assert len(flagged) <= len(LINES) * 3 // 100, flagged


@pytest.mark.parametrize(
    "text",
    [
        "12 " * 7000, "1-2 3.4/5(6)7 " * 1400, "0 " * 10_000, "555-123-4567 ext " * 1200, "+1 " * 6800,
        "call 123 " * 2200, "(" * 20_000 + "1", "1x" * 10_000, "012 345 " * 2500, "0" * 20_000,
        "电话1234 " * 2500, "tel 1-" * 3300,
    ],
)  # fmt: skip
def test_hostile_text_costs_linear_time(text: str) -> None:
    """Twice the text takes about twice the time; by CPU time, so that other work does not count."""
    finder = PatternFinder(KINDS)
    seconds = []
    for size in (10_000, 20_000):
        began = time.process_time()
        list(finder.spans(text[:size]))
        seconds.append(time.process_time() - began)
    assert seconds[1] < 4 * seconds[0] + 0.02

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.text.sentences import MAX_CHARS, SentenceSplitter, split


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two? Three", ["One. ", "Two? ", "Three"]),
        ('He said "no." Then 3.14 went', ['He said "no." ', "Then 3.14 went"]),
        ("- a\n- b\n", ["- a\n", "- b\n"]),
        ("一。二", ["一。", "二"]),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert split(text) == expected


@given(
    st.lists(st.sampled_from(["a", ".", "!", '"', " ", "\n", "。", "x" * 250]), max_size=40),
    st.lists(st.integers(0, 3000), max_size=8),
)
def test_cuts_change_nothing(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    splitter, found = SentenceSplitter(), []
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(bounds):
        found += splitter.feed(text[start:end])
    found += splitter.finish()
    assert found == split(text) and "".join(found) == text
    assert all(len(each) <= MAX_CHARS for each in found)

"""Reasoning and answer are split in the same way however the text is cut."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.providers.engine.reasoning_splitter import MAX_LEADING_NEWLINES, ReasoningSplitter


def part(pieces: list[str], *, begins_inside: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter(begins_inside=begins_inside)
    parts = [*map(splitter.push, pieces), splitter.flush()]
    return "".join(reasoning for reasoning, _ in parts), "".join(answer for _, answer in parts)


def whole(text: str, *, begins_inside: bool) -> tuple[str, str]:
    """The reference: a regular expression over the whole text."""
    opened = re.match(rf"\n{{0,{MAX_LEADING_NEWLINES}}}<think>", text)
    if not opened and not begins_inside:
        return "", text
    reasoning, _, answer = text[opened.end() if opened else 0 :].partition("</think>")
    return reasoning.strip("\n"), answer.lstrip("\n")


@pytest.mark.parametrize(
    ("text", "begins_inside", "expected"),
    [
        ("7+5=12\n</think>\n\n12", True, ("7+5=12", "12")),
        ("\n\na\n\nb\n</think>\n  code\n", True, ("a\n\nb", "  code\n")),
        ("<think>\na</think>b", False, ("a", "b")),
        ("<think>a</think>b", True, ("a", "b")),  # the prompt has opened it, and the model does so again
        ("just an answer", False, ("", "just an answer")),
        ("a <think> is a tag, </think> another", False, ("", "a <think> is a tag, </think> another")),
        ("<think></think>12", False, ("", "12")),
        ("</think>12", True, ("", "12")),
        ("a</think>b</think>c", True, ("a", "b</think>c")),
        ("cut in the midd", True, ("cut in the midd", "")),
        ("cut in the tag</thi", True, ("cut in the tag</thi", "")),
        ("<thi", False, ("", "<thi")),
        ("\n", True, ("", "")),
        ("\n\n", False, ("", "\n\n")),
        ("", False, ("", "")),
    ],
)
def test_every_cut_in_two_and_single_characters(
    text: str, begins_inside: bool, expected: tuple[str, str]
) -> None:
    for cut in range(len(text) + 1):
        assert part([text[:cut], text[cut:]], begins_inside=begins_inside) == expected
    assert part(list(text), begins_inside=begins_inside) == expected


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "</", "think>", "<", "\n", "\n" * 9, "é", "a b"]))


@settings(deadline=None, max_examples=300)
@given(pieces=PIECES, begins_inside=st.booleans(), cuts=st.lists(st.integers(0, 60)))
def test_any_text_in_any_pieces(pieces: list[str], begins_inside: bool, cuts: list[int]) -> None:
    text = "".join(pieces)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    cut_up = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert part(cut_up, begins_inside=begins_inside) == whole(text, begins_inside=begins_inside)


def test_text_that_cannot_be_a_tag_is_not_held_back() -> None:
    splitter = ReasoningSplitter(begins_inside=True)
    assert splitter.push("a <") == ("a ", "")
    assert splitter.push("b\n") == ("<b", "")
    assert not splitter.is_over
    assert splitter.push("</think>") == ("", "")
    assert splitter.is_over
    assert splitter.push("\n12 <") == ("", "12 <")

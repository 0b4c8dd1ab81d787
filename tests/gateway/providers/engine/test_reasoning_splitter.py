"""Reasoning and answer are split in the same way however the text is cut."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tokenizer.thinking import THINK, Tags
from gateway.providers.engine.reasoning_splitter import (
    MAX_CALL_CHARS,
    MAX_LEADING_NEWLINES,
    ReasoningSplitter,
)


def part(pieces: list[str], *, begins_inside: bool, tags: Tags = THINK) -> tuple[str, str]:
    splitter = ReasoningSplitter(begins_inside=begins_inside, tags=tags)
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


ANSWER = Tags("<think>", "</think>", around_answer=("<answer>", "</answer>"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\na\n</think>\n<answer>\n12\n\n13\n</answer>", ("a", "12\n\n13")),
        ("<think>a</think><answer>12</answer>\n", ("a", "12")),
        ("<answer>\n12</answer>", ("", "12")),
        ("<think>a</think>12 <answer>b</answer>", ("a", "12 <answer>b</answer>")),
        ("<think>a</think>\n<tool_calls>[]", ("a", "<tool_calls>[]")),
        ("<think>a</think><answer>b</answer>\n<answer>c</answer>", ("a", "b<answer>c</answer>")),
        ("<think>a</think><answer>cut\n</ans", ("a", "cut\n</ans")),
        ("<think>a</think><ans", ("a", "<ans")),
        ("12", ("", "12")),
    ],
)
def test_an_answer_is_shown_without_its_tags(text: str, expected: tuple[str, str]) -> None:
    for cut in range(len(text) + 1):
        assert part([text[:cut], text[cut:]], begins_inside=False, tags=ANSWER) == expected
    assert part(list(text), begins_inside=False, tags=ANSWER) == expected


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "</", "think>", "<", "\n", "\n" * 9, "é", "a b"]))


@settings(deadline=None, max_examples=300)
@given(pieces=PIECES, begins_inside=st.booleans(), cuts=st.lists(st.integers(0, 60)))
def test_any_text_in_any_pieces(pieces: list[str], begins_inside: bool, cuts: list[int]) -> None:
    text = "".join(pieces)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    cut_up = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert part(cut_up, begins_inside=begins_inside) == whole(text, begins_inside=begins_inside)


@pytest.mark.parametrize("tags", [Tags("[THINK]", "[/THINK]"), Tags("<|channel>thought", "<channel|>")])
def test_other_tags(tags: Tags) -> None:
    for begins_inside in (False, True):
        text = ("" if begins_inside else tags.opening) + f"\na <think>\n{tags.closing}\n12</think>"
        for cut in range(len(text)):
            splitter = ReasoningSplitter(begins_inside=begins_inside, tags=tags)
            parts = [splitter.push(text[:cut]), splitter.push(text[cut:]), splitter.flush()]
            assert tuple("".join(each) for each in zip(*parts, strict=True)) == ("a <think>", "12</think>")


def test_a_call_in_reasoning_that_is_never_closed_can_be_taken() -> None:
    text = "I call.\n<tool_call>x</tool_call>"
    for cut in range(len(text)):
        splitter = ReasoningSplitter(begins_inside=True, marks=["<tool_call>"])
        parts = [splitter.push(text[:cut]), splitter.push(text[cut:])]
        assert splitter.take_call() == "<tool_call>x</tool_call>"
        assert "".join(part[0] for part in [*parts, splitter.flush()]) == "I call."
    splitter = ReasoningSplitter(begins_inside=True, marks=["<tool_call>"])
    closed = [splitter.push(text), splitter.push("</think>12")]
    assert splitter.take_call() == ""
    assert closed[0][0] + closed[1][0] == text and closed[1][1] == "12"


def test_long_reasoning_is_not_held_back_for_ever() -> None:
    splitter = ReasoningSplitter(begins_inside=True, marks=["<tool_call>"])
    assert splitter.push("<tool_call>") == ("", "")
    long = "x" * MAX_CALL_CHARS
    assert splitter.push(long) == ("<tool_call>" + long, "") and splitter.take_call() == ""


def test_text_that_cannot_be_a_tag_is_not_held_back() -> None:
    splitter = ReasoningSplitter(begins_inside=True)
    assert splitter.push("a <") == ("a ", "")
    assert splitter.push("b\n") == ("<b", "")
    assert not splitter.is_over
    assert splitter.push("</think>") == ("", "")
    assert splitter.is_over
    assert splitter.push("\n12 <") == ("", "12 <")

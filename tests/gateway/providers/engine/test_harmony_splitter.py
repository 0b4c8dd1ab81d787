"""Messages in channels: reasoning, text and calls, however the text is cut and whatever its headers are."""

from __future__ import annotations

import random

import pytest

from gateway.providers.engine.harmony_splitter import MAX_HEADER_CHARS, HarmonySplitter
from gateway.tool_calls.harmony import HARMONY
from tests.gateway.tool_calls.pieces import parse

ANALYSIS = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>"
FINAL = "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'


def split(pieces: list[str]) -> tuple[str, str]:
    splitter = HarmonySplitter()
    parts = [*map(splitter.push, pieces), splitter.flush()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


def whole(text: str) -> tuple[str, str]:
    """The split of the whole text, which is that of every cut."""
    found = split([text])
    assert split(list(text)) == found
    for at in range(len(text)):
        assert split([text[:at], text[at:]]) == found
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ANALYSIS}7+5=12{NEXT}{FINAL}It is 12.<|return|>", ("7+5=12", "It is 12.")),
        (f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c{NEXT}{FINAL}d", ("a\n\nb", "c\n\nd")),
        (f"{ANALYSIS}a{NEXT}{PREAMBLE}I look.{NEXT}{FINAL}It is.", ("a", "I look.\n\nIt is.")),
        (f"{FINAL}no reasoning <|x|> <|end", ("", "no reasoning <|x|> <|end")),
        (f"{ANALYSIS}cut in the midd", ("cut in the midd", "")),
        (f"{ANALYSIS}a{NEXT}<|channel|>fi", ("a", "")),
        ("plain text", ("", "plain text")),
        ("to=5 is\n", ("", "to=5 is\n")),
        ("\n", ("", "\n")),
        ("", ("", "")),
        (f"<|start|>assistant{FINAL}x<|end|>\n", ("", "x")),
        ("<|start|>assistant<|message|>x", ("", "x")),
        (f"{ANALYSIS}a{FINAL}b", ("a", "b")),  # a header without the end of the message before it
        (f"{ANALYSIS}a<|end|>{FINAL}b", ("a", "b")),
        ("<|channel|>final <|constrain|>json<|message|>{}", ("", "{}")),
    ],
)  # fmt: skip
def test_channels(text: str, expected: tuple[str, str]) -> None:
    assert whole(text) == expected


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.add <|constrain|>json",
        "<|channel|>commentary to=functions.add<|constrain|>json",
        "<|channel|>commentary to=functions.add code",
        "<|channel|>analysis to=functions.add ",
        " to=functions.add<|channel|>commentary json",  # the recipient in the role's header
        " to=functions.add<|channel|>analysis <|constrain|>json",
        "<|start|>assistant to=functions.add<|channel|>commentary",
        "<|channel|>commentary<|channel|>commentary to=functions.add <|constrain|>json",  # twice
        "<|channel|>commentary to=functions.add<|channel|>commentary json",
        "<|channel|>commentary to=functions.add––commentary",
        "<|channel|>commentary to=functions.add <|constrain|>response",
        "<|channel|>final to=functions.add json",
    ],
)
def test_the_recipient_may_be_in_either_header(header: str) -> None:
    for text in (f'{header}<|message|>{{"a": 1}}<|call|>', f'{header}<|message|>{{"a": 1}}'):
        reasoning, answer = whole(text)
        assert (reasoning, parse(HARMONY, [answer])) == ("", ("", [("add", '{"a": 1}')]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<|channel|>odd<|message|>x", "odd<|message|>x"),
        ("<|channel|><|channel|>final<|message|>x", "x"),
        ("<|message|><|message|>x", "<|message|>x"),
        (f"{FINAL}a<|start|>system<|channel|>final<|message|>b", "a"),
        (f"<|channel|>{'x' * (MAX_HEADER_CHARS + 50)}<|message|>y", "x<|message|>y"),
        (f"{FINAL}a<|end|>b{NEXT}{FINAL}c", "b"),
        ("<|end|><|end|>x", "x"),
        (f"{ANALYSIS}{NEXT}<|start|>assistant{FINAL}x", "x"),
    ],
)
def test_stray_headers_are_text_and_never_an_error(text: str, shown: str) -> None:
    assert shown in whole(text)[1]


def fuzzed(count: int) -> None:
    draw = random.Random(7)
    tokens = [
        ANALYSIS,
        NEXT,
        FINAL,
        CALL,
        "<|start|>",
        "<|message|>",
        "<|call|>",
        "<|channel|>",
        " to=",
        "x",
        "\n",
        "<|",
    ]
    for _ in range(count):
        text = "".join(draw.choices(tokens, k=draw.randint(1, 12)))
        at = sorted(draw.choices(range(len(text) + 1), k=4))
        pieces = [text[start:end] for start, end in zip([0, *at], [*at, len(text)], strict=True)]
        assert split(pieces) == split([text])


def test_any_cut_gives_the_same_split() -> None:
    fuzzed(1_000)


@pytest.mark.slow
def test_ten_thousand_cuts_give_the_same_split() -> None:
    fuzzed(10_000)

"""Gemma 4's own syntax becomes JSON."""

from __future__ import annotations

import json

import pytest

from gateway.tool_calls.gemma import GEMMA4
from gateway.tool_calls.parser import ToolCallParser
from tests.gateway.tool_calls.pieces import parse

OBJECT = {"k": [1, -2500.0, True, "x", []], "two words": {}}
Q = '<|"|>'
SCHEMAS = {"add": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("", {}),
        (f"s:{Q}a{Q}", {"s": "a"}),
        (f"s:{Q}5{Q},n:5", {"s": "5", "n": 5}),
        (f's:{Q}"q" \\ }}<tool_call|>\n{Q}', {"s": '"q" \\ }<tool_call|>\n'}),
        (f"o:{{k:[1,-2.5e3,true,{Q}x{Q},[]],{Q}two words{Q}:{{}}}}", {"o": OBJECT}),
        ("x:None,y:null", {"x": None, "y": None}),
        ("s:Paris", {"s": "Paris"}),
        ("s:5", {"s": "5"}),
        (" n : 5 , s : x ", {"n": 5, "s": "x"}),
        ('"s":"a}\\n\\",", "n": 5', {"s": 'a}\n",', "n": 5}),
        (f's:{Q}a{Q}n:5,x:"b"y:1', {"s": "a", "n": 5, "x": "b", "y": 1}),  # commas are left out
        (f"l:[{Q}a,b{Q},{{k:{Q}]{Q}}}]", {"l": ["a,b", {"k": "]"}]}),
    ],
)
def test_values(inner: str, expected: object) -> None:
    text = f"<|tool_call>call:add{{{inner}}}<tool_call|>"
    ((_, found),) = parse(GEMMA4, list(text), schemas=SCHEMAS)[1]
    assert json.loads(found) == expected


@pytest.mark.parametrize(
    "inner",
    [
        "5",
        "a",
        "a:",
        "a:1,",
        "a:1,a:2",
        'a:"x',
        '"a"1',
        ":1",
        "a:[1",
        "a:[1,]",
        "a:" + "[" * 100 + "]" * 100,
        f"a:{Q}x",
        "a:1]",
    ],
)
def test_anything_but_a_call_is_text(inner: str) -> None:
    text = f"<|tool_call>call:add{{{inner}}}<tool_call|>"
    assert parse(GEMMA4, list(text)) == (text, [])


def test_a_namespace_before_the_name_is_dropped() -> None:
    assert parse(GEMMA4, list("<|tool_call>call:api:add{a:1}<tool_call|>"))[1] == [("add", '{"a": 1}')]


def test_long_strings_are_streamed() -> None:
    parser = ToolCallParser(GEMMA4, ["add"])
    text = f"<|tool_call>call:add{{s:{Q}{'word ' * 400}{Q}}}<tool_call|>"
    given = [piece.arguments for char in text for piece in parser.push(char).calls]
    assert len(given) > 20 and json.loads("".join(given)) == {"s": "word " * 400}

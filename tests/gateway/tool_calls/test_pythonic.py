from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tool_calls.families import SYNTAXES
from gateway.tool_calls.pythonic import PYTHONIC
from tests.gateway.tool_calls.pieces import cut, cuts, decoded, json_values, parse

keywords = st.dictionaries(st.sampled_from(["a", "city", "n_1"]), json_values, max_size=3)
calls = st.tuples(st.sampled_from(["add", "look_up"]), keywords)


@settings(deadline=None, max_examples=40)
@given(
    made=st.lists(calls, min_size=1, max_size=3),
    places=cuts,
    mark=st.sampled_from(["", "\n", "<|python_start|>"]),
)
def test_calls_are_parsed_as_written(
    made: list[tuple[str, dict[str, Any]]], places: list[int], mark: str
) -> None:
    listed = (f"{name}({', '.join(f'{k}={v!r}' for k, v in values.items())})" for name, values in made)
    shown, found = parse(PYTHONIC, cut(f"{mark}[{', '.join(listed)}]", places))
    assert (shown, decoded(found)) == ("", made)


def test_literals_become_json() -> None:
    text = """[add(a='it''s', b=("x", -1.5), c={1: None}, d=True, e="\\d", f="\\ud800", g=[])]"""
    ((_, values),) = decoded(parse(PYTHONIC, [text])[1])
    expected = {"a": "its", "b": ["x", -1.5], "c": {"1": None}, "d": True, "e": "\\d", "f": "\ud800", "g": []}
    assert values == expected


@pytest.mark.parametrize(
    "text",
    [
        "[add(1)]", "[add(a=b)]", "[add(a=open('x'))]", "[add(**{'a': 1})]", "[add(a=1, a=2)]",
        "[add(a=+1e999)]", "[add(a=)]", "[add(=1)]", "[add(a b)]", "[add(1a=1)]", "[add(a==1)]",
        "[add(a={1, 2})]", "[add(a=b'x')]", "[add(a=1]", "[add(a=" + "[" * 100 + "]" * 100 + ")]",
        "[1, 2]", "[]",
        "[other(a=1)]", "[add", "[" + "a" * 300, "See [add(a=1)]", "[add(a=" + "9" * 5000 + ")]",
    ],
)  # fmt: skip
def test_anything_but_a_call_is_text(text: str) -> None:
    assert parse(PYTHONIC, list(text)) == (text, [])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"""def f(x):\n    return "(" + x\n"""', 'def f(x):\n    return "(" + x\n'),
        ("'''it's \\''' ['''", "it's ''' ["),
        ('""', ""),
        ('"" "a"', "a"),
        ('"a\nb\r\n"', "a\nb\r\n"),  # line breaks that Python does not allow
        ("'a\nb'", "a\nb"),
        ('"\\/\\ud83d\\ude00"', "/😀"),
        ("1e999", float("inf")),
        ("'it's  5 o'clock\n'n' more'", "it's  5 o'clock\n'n' more"),
        ('"say "hi" now"', 'say "hi" now'),
        ("['a's', {'k': 'b'c'}]", ["a's", {"k": "b'c"}]),
        ("'it''s' ' on'", "its on"),
        ("[1, {'a': true}, (2,)]", [1, {"a": True}, [2]]),
    ],
)
def test_what_models_write_as_values(written: str, value: object) -> None:
    assert decoded(parse(PYTHONIC, list(f"[add(a={written}, b=5)]"))[1]) == [("add", {"a": value, "b": 5})]


def test_parameters_may_have_names_that_python_reserves() -> None:
    text = '[add(from="a", class = 1, x-y=2, größe=3,)]'
    values = {"from": "a", "class": 1, "x-y": 2, "größe": 3}
    assert decoded(parse(PYTHONIC, list(text))[1]) == [("add", values)]


def test_lfm2_may_write_json_between_its_marks() -> None:
    text = '<|tool_call_start|>[{"name": "add", "arguments": {"a": 1}}, look_up()]<|tool_call_end|>'
    assert parse(SYNTAXES["lfm2"], list(text)) == ("", [("add", '{"a": 1}'), ("look_up", "{}")])
    bare = '[{"name": "add", "arguments": {"a": 1}}]'
    assert parse(PYTHONIC, list(bare)) == (bare, [])


def test_large_arguments_are_read_once() -> None:
    ((_, found),) = parse(PYTHONIC, list(f"[add(a={'x' * 50_000!r})]"))[1]
    assert json.loads(found) == {"a": "x" * 50_000}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lfm2", "<|tool_call_start|>[add(a=1), look_up()]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[add(a=1), look_up()]"),
        ("olmo3", "<function_calls>\nadd(a=1)\nlook_up()\n</function_calls>"),
        ("olmo3", "<function_calls>add(a=1)\nlook_up()"),
        ("pythonic", "<|python_start|>[add(a=1), look_up()]<|python_end|>"),
    ],
)
def test_calls_between_marks(name: str, text: str) -> None:
    assert parse(SYNTAXES[name], list(text)) == ("", [("add", '{"a": 1}'), ("look_up", "{}")])


def test_jsons_words_are_literals() -> None:
    text = '<function_calls>add(a=true, b=[null, {"c": false}])</function_calls>'
    ((_, values),) = decoded(parse(SYNTAXES["olmo3"], list(text))[1])
    assert values == {"a": True, "b": [None, {"c": False}]}

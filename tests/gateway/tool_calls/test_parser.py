"""Invariants of every syntax: cuts change nothing, nothing is lost, broken calls are text."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tool_calls.call_syntax import overlap
from gateway.tool_calls.hermes import HERMES
from gateway.tool_calls.llama_json import LLAMA_JSON
from gateway.tool_calls.mistral import MISTRAL
from gateway.tool_calls.parser import HOLD_CHARS, Syntax, ToolCallParser
from gateway.tool_calls.pythonic import PYTHONIC
from tests.gateway.tool_calls.pieces import cut, cuts, parse

SYNTAXES = [HERMES, LLAMA_JSON, MISTRAL, PYTHONIC]

fragments = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>",
        "[", "]",
        "{", "}", '"', ":", ",", ";", "\n", " ", "\\", "'", "(", ")", "=", "add", "look_up", "none",
        "null", "-1.5",
        '{"name": "add", "arguments": {"a": 1}}', '{"name": "none", "arguments": {}}',
        '"name"', '"arguments"',
        '"parameters": {}', "add(a=1, b='x')", 'add{"a": [1, {"b": "}"}]}', "Hello", "雨🎉", '"a" * 300',
        '"' + "long " * 60 + '"',
    ]
)  # fmt: skip
noise = st.lists(fragments, max_size=14).map("".join)


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
@settings(deadline=None, max_examples=50)
@given(text=noise, places=cuts, hold=st.sampled_from([0, 1, 10, HOLD_CHARS]))
def test_cuts_change_nothing(syntax: Syntax, text: str, places: list[int], hold: int) -> None:
    whole = parse(syntax, [text], hold_chars=hold)
    assert parse(syntax, cut(text, places), hold_chars=hold) == whole
    assert parse(syntax, list(text), hold_chars=hold) == whole


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
@settings(deadline=None, max_examples=40)
@given(text=noise)
def test_text_without_calls_is_unchanged(syntax: Syntax, text: str) -> None:
    shown, calls = parse(syntax, list(text))
    if not calls:
        assert shown == text
    elif HOLD_CHARS > len(text):
        for _, found in calls:
            assert isinstance(json.loads(found), dict)


def written(syntax: Syntax, values: Mapping[str, object], name: str = "add") -> str:
    call = json.dumps({"name": name, "arguments": values})
    keywords = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return {
        "hermes": f"<tool_call>\n{call}\n</tool_call>",
        "llama3_json": call,
        "mistral": f"[TOOL_CALLS][{call}]",
        "pythonic": f"[{name}({keywords})]",
    }[syntax.name]


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_a_truncated_call_is_text_or_a_call(syntax: Syntax) -> None:
    text = written(syntax, {"a": 'x}"雨', "b": [1, {"c": None}]})
    for end in range(len(text)):
        shown, calls = parse(syntax, cut(text[:end], range(0, 400, 7)))
        assert (shown, len(calls)) in ((text[:end], 0), ("", 1))
        assert all(json.loads(found) for _, found in calls)
        shown, calls = parse(syntax, [text[:end]], hold_chars=0)
        assert calls or shown == text[:end]


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_functions_that_were_not_offered_are_text(syntax: Syntax) -> None:
    text = written(syntax, {"a": 1}, name="rm")
    assert parse(syntax, list(text)) == (text, [])


@pytest.mark.parametrize("syntax", [HERMES, LLAMA_JSON, MISTRAL], ids=lambda syntax: syntax.name)
def test_long_arguments_are_streamed(syntax: Syntax) -> None:
    parser = ToolCallParser(syntax, ["add"])
    text = written(syntax, {"code": "x = 1; " * 100})
    given = [piece for char in text for piece in parser.push(char).calls]
    assert given[0].name == "add" and HOLD_CHARS <= len(given[0].arguments) < HOLD_CHARS + 2
    assert len(given) > 300 and all(len(each.arguments) == 1 for each in given[1:])


@pytest.mark.parametrize("syntax", [HERMES, LLAMA_JSON, MISTRAL], ids=lambda syntax: syntax.name)
def test_a_long_call_that_breaks_keeps_what_was_streamed_and_the_rest_is_text(syntax: Syntax) -> None:
    text = written(syntax, {"code": "x" * 400}).replace('"}', '" oops}')
    shown, ((name, found),) = parse(syntax, list(text))
    assert name == "add" and found.startswith('{"code": "xxx')
    assert text.endswith(found + shown)


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_the_answer_ends_after_max_calls(syntax: Syntax) -> None:
    parser = ToolCallParser(syntax, ["add"], max_calls=1)
    text = written(syntax, {"a": 1})
    parser.push(text + " and " + text)
    assert parser.is_done and parser.num_calls == 1
    assert parser.push("more").text == "" and parser.flush().text == ""


@pytest.mark.parametrize("syntax", [HERMES, MISTRAL], ids=lambda syntax: syntax.name)
def test_text_around_calls_keeps_its_inner_space(syntax: Syntax) -> None:
    call = written(syntax, {"a": 1})
    shown, calls = parse(syntax, list(f"\n One \n{call}\n\n{call} two\n{call}\n"))
    assert (shown, len(calls)) == ("\n One \n\n\n two", 3)
    assert parse(syntax, [f"\n{call}\n"])[0] == ""
    assert parse(syntax, [f"\n{call}\nyes "])[0] == "yes"


def test_control_characters_in_strings_are_escaped() -> None:
    text = '{"name": "add", "parameters": {"code": "a\n\t\x01b", "\r": "\\n"}}'
    assert parse(LLAMA_JSON, list(text)) == ("", [("add", r'{"code": "a\n\t\u0001b", "\r": "\n"}')])


@given(st.text("ab<", max_size=12), st.text("ab<", min_size=1, max_size=8))
def test_overlap_is_the_longest_beginning_of_a_mark(text: str, mark: str) -> None:
    longest = max(n for n in range(len(mark)) if text.endswith(mark[:n]))
    assert overlap(text, mark) == longest

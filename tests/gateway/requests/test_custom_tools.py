"""Custom tools as functions with one text, and back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.requests.custom_tools import (
    CustomInput,
    arguments_of,
    as_custom,
    as_functions,
    custom_names,
    read_custom,
)

GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}


def custom(**fields: object) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "edit", **fields}}


def whole(arguments: str) -> str:
    reader = CustomInput()
    return reader.push(arguments) + reader.finish()


@given(
    st.text(alphabet='ab"\\\n\t\x01/u0{}é😀'),
    st.lists(st.integers(1, 7), max_size=40),
    st.sampled_from([arguments_of, lambda text: ' {\n"input" : ' + json.dumps(text) + "}"]),
)
def test_an_input_is_the_same_however_its_arguments_are_cut(text: str, cuts: list[int], write: Any) -> None:  # noqa: ANN401
    arguments, reader, read = write(text), CustomInput(), ""
    for length in [*cuts, len(arguments)]:
        read += reader.push(arguments[:length])
        arguments = arguments[length:]
    assert read + reader.finish() == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("begin\nend", "begin\nend"),
        ('{"patch": "x"}', "x"),
        ('{"why": "x", "input": "y"}', "y"),
        ('"x"', "x"),
        ("{}", ""),
        ('{"input": ["x"]}', '{"input": ["x"]}'),
        ('{"input": "a\\d', "a\\d"),
        ('{"input": "a\\ud83d', "a"),
        ('{"input": "a\\ud83db"}', "a\ufffdb"),
    ],
)
def test_what_a_model_writes_otherwise_is_still_its_input(arguments: str, text: str) -> None:
    assert whole(arguments) == text


@pytest.mark.parametrize("unit", ['\\n\\"', '"', "{", "x"])
def test_reading_costs_linear_time(unit: str) -> None:
    costs = []
    for count in (20_000, 80_000):
        best = []
        for _ in range(3):
            begun = time.process_time()
            reader = CustomInput()
            for _ in range(count // 100):
                reader.push(unit * 100)
            reader.finish()
            best.append(time.process_time() - begun)
        costs.append(min(best))
    assert costs[1] < 10 * costs[0] + 0.05


def test_a_grammar_is_told_in_the_description() -> None:
    function = read_custom(custom(description="Edits.", format=GRAMMAR), "tools[0]").function
    assert function["description"] == 'Edits.\n\nThe input must match this Lark grammar:\nstart: "a"'
    assert function["parameters"]["required"] == ["input"]


def test_tools_calls_and_choices_become_functions_and_calls_come_back() -> None:
    other = {"type": "function", "function": {"name": "add"}}
    allowed = {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "edit"}}]}
    found = as_functions([custom(), other], {"type": "allowed_tools", "allowed_tools": allowed})
    assert [tool["type"] for tool in found["tools"]] == ["function", "function"]
    assert found["tool_choice"]["allowed_tools"]["tools"] == [
        {"type": "function", "function": {"name": "edit"}}
    ]
    names = custom_names([custom(), other])
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "edit", "arguments": arguments_of("a\n")}},
        {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
    ]
    (message,) = as_custom([{"role": "assistant", "tool_calls": calls}], names)
    assert message["tool_calls"][0]["custom"] == {"name": "edit", "input": "a\n"}
    assert message["tool_calls"][1] == calls[1]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "custom"}, "t.custom"),
        (custom(name="no name"), "t.custom.name"),
        (custom(format={"type": "xml"}), "t.custom.format.type"),
        (custom(format={"type": "grammar"}), "t.custom.format.grammar"),
        (
            custom(format={"type": "grammar", "grammar": {"syntax": "peg", "definition": "x"}}),
            "t.custom.format.grammar.syntax",
        ),
    ],
)
def test_errors_name_the_field(tool: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_custom(tool, "t")
    assert refused.value.param == param

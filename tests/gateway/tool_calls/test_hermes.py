from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tool_calls.hermes import HERMES
from tests.gateway.tool_calls.pieces import calls, cut, cuts, decoded, json_styles, parse


@settings(deadline=None, max_examples=40)
@given(
    made=st.lists(calls, min_size=1, max_size=3),
    style=json_styles,
    places=cuts,
    before=st.sampled_from(["", "Let me see.", "1 < 2 <tool>\n\n{"]),
    after=st.sampled_from(["", "\n", "\n\nThat is all <b>"]),
    space=st.sampled_from(["", "\n", "\n\n  "]),
)
def test_calls_are_parsed_as_written(
    made: list[tuple[str, dict[str, object]]],
    style: dict[str, object],
    places: list[int],
    before: str,
    after: str,
    space: str,
) -> None:
    written = [json.dumps(values, **style) for _, values in made]  # type: ignore[arg-type]
    blocks = [
        f'<tool_call>{space}{{"name": "{name}",{space}"arguments": {text}}}{space}</tool_call>'
        for (name, _), text in zip(made, written, strict=True)
    ]
    shown, found = parse(HERMES, cut(before + space + space.join(blocks) + after, places))
    assert found == [(name, text) for (name, _), text in zip(made, written, strict=True)]
    assert "".join(shown.split()) == "".join((before + after).split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', {"a": 1}),
        ('<tool_call>{"name": "add", "parameters": {"a": 1}}</tool_call>', {"a": 1}),
        ('<tool_call>{"name": "add"}</tool_call>', {}),
        ('<tool_call>{"name": "add", "arguments": null}</tool_call>', {}),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": \\"\\\\n\\"}"}</tool_call>', {"a": "\n"}),
        ('<tool_call>{"id": 7, "type": "f", "x": [1], "name": "add", "arguments": {}}</tool_call>', {}),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}, "id": 7}</tool_call>', {"a": 1}),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>', {"a": 1}),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}}</tool_call>', {"a": 1}),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}', {"a": 1}),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_', {"a": 1}),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}', {"a": 1}),
    ],
)
def test_common_deviations_are_accepted(text: str, expected: object) -> None:
    for pieces in ([text], list(text)):
        shown, found = parse(HERMES, pieces)
        assert (shown, decoded(found)) == ("", [("add", expected)])


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arguments": {"a": 01}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": nan}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {\'a\': 1}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 1,}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": "\\x"}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": [1}}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "a"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "{} {}"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": ' + '{"a":' + "[" * 200,
        "<tool_call>add</tool_call>",
        "<tool_call>",
        "a <tool_cal",
        "a <",
    ],
)
def test_anything_but_a_call_is_text(text: str) -> None:
    for pieces in ([text], list(text)):
        assert parse(HERMES, pieces) == (text, [])


def test_a_call_after_a_broken_one_is_found() -> None:
    text = '<tool_call>{"name": "add", <tool_call>{"name": "add", "arguments": {}}</tool_call> end'
    assert parse(HERMES, list(text)) == ('<tool_call>{"name": "add",  end', [("add", "{}")])


def test_one_block_may_hold_several_calls() -> None:
    text = '<tool_call>{"name": "add", "arguments": {}}\n{"name": "look_up", "arguments": {}}</tool_call>'
    assert parse(HERMES, list(text)) == ("", [("add", "{}"), ("look_up", "{}")])

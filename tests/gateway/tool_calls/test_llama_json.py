from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tool_calls.llama_json import LLAMA_JSON
from tests.gateway.tool_calls.pieces import calls, cut, cuts, json_styles, parse


@settings(deadline=None, max_examples=40)
@given(
    made=st.lists(calls, min_size=1, max_size=3),
    style=json_styles,
    places=cuts,
    mark=st.sampled_from(["", "\n", "<|python_tag|>", "I call. <|python_tag|> "]),
    beside=st.sampled_from(["; ", ";", "\n", ", "]),
)
def test_calls_are_parsed_as_written(
    made: list[tuple[str, dict[str, object]]],
    style: dict[str, object],
    places: list[int],
    mark: str,
    beside: str,
) -> None:
    written = [(name, json.dumps(values, **style)) for name, values in made]  # type: ignore[arg-type]
    text = mark + beside.join(f'{{"name": "{name}", "parameters": {values}}}' for name, values in written)
    shown, found = parse(LLAMA_JSON, cut(text, places))
    assert found == written
    assert shown == ("I call." if "I call" in mark else "")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "parameters": {}}',
        '{"name": "add", "age": 7}',
        '{"name": "add", "parameters": 5}',
        'It is {"name": "add", "parameters": {}}',
        '<|python_tag|>brave_search.call(query="x")',
        "{",
        " {}",
        "<|python_tag|",
    ],
)
def test_other_answers_are_unchanged(text: str) -> None:
    found = parse(LLAMA_JSON, list(text))
    assert found == (text, []) or text == '{"name": "add", "age": 7}'


def test_text_after_calls_is_text() -> None:
    call = '{"name": "add", "parameters": {}}'
    assert parse(LLAMA_JSON, list(call + "; done.")) == ("; done.", [("add", "{}")])
    assert parse(LLAMA_JSON, list(call + ' {"a": 1}'))[0] == '{"a": 1}'

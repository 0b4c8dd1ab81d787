from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tool_calls.mistral import MISTRAL
from tests.gateway.tool_calls.pieces import calls, cut, cuts, json_styles, parse


@settings(deadline=None, max_examples=40)
@given(
    made=st.lists(calls, min_size=1, max_size=3),
    style=json_styles,
    places=cuts,
    form=st.sampled_from(["list", "plain", "args", "id"]),
    before=st.sampled_from(["", "Well [", "Let me see."]),
)
def test_calls_are_parsed_as_written(
    made: list[tuple[str, dict[str, object]]],
    style: dict[str, object],
    places: list[int],
    form: str,
    before: str,
) -> None:
    written = [(name, json.dumps(values, **style)) for name, values in made]  # type: ignore[arg-type]
    if form == "list":
        listed = ", ".join(f'{{"name": "{name}", "arguments": {values}}}' for name, values in written)
        text = f"[TOOL_CALLS] [{listed}]"
    else:
        between = {"plain": "", "args": "[ARGS]", "id": "[CALL_ID]aB3xY6z90[ARGS]"}[form]
        text = "".join(f"[TOOL_CALLS]{name}{between}{values}" for name, values in written)
    assert parse(MISTRAL, cut(before + text, places)) == (before, written)


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS]other{}", "[TOOL_CALLS]add[ARGS]5",
        "[TOOL_CALLS]add[ID]{}",
        "[TOOL_CALLS]" + "x" * 300, "[TOOL_CALLS]add[" + "x" * 300, '[TOOL_CALLS][{"name": "add"} {"a": 1}]',
    ],
)  # fmt: skip
def test_anything_but_a_call_is_text(text: str) -> None:
    shown, found = parse(MISTRAL, list(text))
    if "add" in text and "}" in text and not text.endswith("[ID]{}"):
        assert (shown, found) == ('{"a": 1}]', [("add", "{}")])
    else:
        assert (shown, found) == (text, [])

"""Every text of a body is found with who wrote it, and nothing else is changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.screen.segments import changed_body, longest_field, texts, wants_json

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
NAMES = st.sampled_from(
    [
        "role",
        "content",
        "text",
        "type",
        "tool_calls",
        "function",
        "arguments",
        "custom",
        "input",
        "name",
        "enum",
    ]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
BODIES = st.dictionaries(
    st.sampled_from(["messages", "prompt", "input", "documents", "tools", "prediction", "model", "n"]), JSON
)


@given(BODIES)
def test_any_body_is_read_and_what_is_not_changed_stays(body: dict[str, Any]) -> None:
    assert changed_body(body, lambda segment, text, *, in_json=False: text) == body


@given(BODIES)
def test_every_text_that_is_found_is_one_that_can_be_changed(body: dict[str, Any]) -> None:
    num_found = len(texts(body))
    changed = changed_body(body, lambda segment, text, *, in_json=False: "")
    assert texts(changed) == [] and (num_found == 0 or changed != body)


CALL = {"id": "c", "function": {"name": "f", "arguments": '{"a": "x"}'}}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"prompt": "a"}, [("user", "a")]),
        ({"prompt": ["a", [1, 2], ""]}, [("user", "a")]),
        ({"messages": [{"role": "system", "content": "a"}]}, [("system", "a")]),
        ({"messages": [{"role": "developer", "content": "a"}]}, [("system", "a")]),
        ({"messages": [{"role": "wizard", "content": "a"}]}, [("user", "a")]),
        ({"messages": [{"role": [], "content": "a"}]}, [("user", "a")]),
        ({"messages": [{"role": "tool", "content": [{"type": "text", "text": "a"}]}]}, [("tool", "a")]),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, [("assistant", '{"a": "x"}')]),
        ({"messages": [{"role": "assistant", "reasoning": "a"}]}, [("assistant", "a")]),
        ({"documents": [{"title": "a", "pages": ["b"]}]}, [("tool", "a"), ("tool", "b")]),
        ({"query": "a"}, [("user", "a")]),
        ({"tools": [{"function": {"name": "n", "description": "a"}}]}, [("system", "a")]),
        ({"prediction": {"type": "content", "content": "a"}}, [("assistant", "a")]),
        ({"messages": "a", "tools": 7, "prompt": None}, []),
    ],
)  # fmt: skip
def test_who_wrote_what(body: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert texts(body) == found


def test_the_longest_field_and_the_form_of_the_answer() -> None:
    assert longest_field({"model": "m" * 99, "prompt": "abc", "suffix": "a"}) == "prompt"
    assert wants_json({"response_format": {"type": "json_schema"}}) and wants_json({"guided_json": {}})
    assert not wants_json({"response_format": {"type": "text"}}) and not wants_json(
        {"response_format": "json"}
    )

"""JSON behind marks: one object or a list, what closes it, Apertus's short form."""

from __future__ import annotations

import pytest

from gateway.tool_calls.families import SYNTAXES
from tests.gateway.tool_calls.pieces import parse

CALL = '{"name": "add", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("granite", f"<|tool_call|>[{CALL}]"),
        ("granite", f"<|tool_call|> {CALL}"),
        ("phi4_mini_json", f"<|tool_call|>{CALL}<|/tool_call|>"),
        ("phi4_mini_json", f"<|tool_call|>[{CALL}"),
        ("hunyuan_a13b", f"<tool_calls>\n[\n{CALL}\n]\n</tool_calls>"),
        ("cohere", '<|START_ACTION|>[{"tool_name": "add", "parameters": {"a": 1}}]<|END_ACTION|>'),
        ("cohere", '<|START_ACTION|>{"tool_call_id": "0", "tool_name": "add", "parameters": {"a": 1}}'),
        ("apertus", '<|tools_prefix|>[{"add": {"a": 1}}]<|tools_suffix|>'),
    ],
)
def test_a_list_or_one_object(name: str, text: str) -> None:
    assert parse(SYNTAXES[name], list(text)) == ("", [("add", '{"a": 1}')])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("granite", "<|tool_call|>[]"),
        ("granite", "<|tool_call|>[1]"),
        ("hunyuan_a13b", "<tool_calls>add</tool_calls>"),
        ("apertus", '<|tools_prefix|>[{"add": 5}]<|tools_suffix|>'),
        ("apertus", '<|tools_prefix|>[{"rm": {}}]<|tools_suffix|>'),
        ("apertus", "<|tools_prefix|>[{}]<|tools_suffix|>"),
    ],
)
def test_anything_but_a_call_is_text(name: str, text: str) -> None:
    assert parse(SYNTAXES[name], list(text)) == (text, [])


def test_text_after_calls_is_text() -> None:
    assert parse(SYNTAXES["granite"], [f"<|tool_call|>[{CALL}] and"]) == ("and", [("add", '{"a": 1}')])
    shown, found = parse(SYNTAXES["hunyuan_a13b"], [f"<tool_calls>[{CALL}] and"])
    assert (shown, len(found)) == ("and", 1)

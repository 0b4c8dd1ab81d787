"""Plain text becomes JSON of the type that the tool's schema asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tool_calls.schema_values import ANY, STRING, escaped, parameter_types, typed
from tests.gateway.tool_calls.pieces import json_values
from tests.gateway.tool_calls.writers import kind, text_of

FUNCTION: dict[str, Any] = {
    "properties": {
        "one": {"type": "integer"},
        "many": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/text"}]},
        "named": {"enum": ["a", 5, None]},
        "fixed": {"const": True},
        "loop": {"$ref": "#/$defs/loop"},
        "lost": {"$ref": "#/$defs/none/at~1all"},
        "free": {},
        "open": True,
    },
    "additionalProperties": {"type": "array"},
    "$defs": {"text": {"type": "string"}, "loop": {"oneOf": [{"$ref": "#/$defs/loop"}, {"type": "boolean"}]}},
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one", {"integer"}),
        ("many", {"string", "null"}),
        ("either", {"number", "string"}),
        ("named", {"string", "integer", "null"}),
        ("fixed", {"boolean"}),
        ("loop", {"boolean"}),
        ("lost", ANY),
        ("free", ANY),
        ("open", ANY),
        ("other", {"array"}),
    ],
)
def test_types_of_a_parameter(name: str, expected: set[str]) -> None:
    assert parameter_types(FUNCTION, name) == expected
    assert parameter_types({}, name) == ANY


def test_schemas_that_refer_to_themselves_end() -> None:
    many = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i + k) % 30}"} for k in range(3)]} for i in range(30)}
    assert parameter_types({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": many}, "a") == ANY


@given(value=json_values)
def test_a_value_of_the_schemas_type_is_read_as_it_is(value: object) -> None:
    assert json.loads(typed(text_of(value), [kind(value)])) == value
    if not isinstance(value, str):
        assert json.loads(typed(text_of(value), ANY)) == value


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("True", ["boolean"], True),
        ("None", ["string", "null"], None),
        ("None", ["string"], "None"),
        ("['a', 1.5, None]", ["array"], ["a", 1.5, None]),
        ("{'a': (1,)}", ["object"], {"a": [1]}),
        ("{'a': open}", ["object"], "{'a': open}"),
        ("[" * 500, ["array"], "[" * 500),
        ("[" * 500 + "]" * 500, ["array"], "[" * 500 + "]" * 500),
        (" 5 ", ["integer"], 5),
        ("5", ["number"], 5),
        ("5.5", ["integer"], "5.5"),
        ("five", ["integer"], "five"),
        ("05", ["integer"], "05"),
        ("9" * 5000, ["integer"], "9" * 5000),
        ("", ["integer"], ""),
        ('"x"', ["object"], '"x"'),
        ('{"a": "b\nc"}', ["object"], {"a": "b\nc"}),
        ("{} {}", ["object"], "{} {}"),
        ("雨", ANY, "雨"),
        ('"x"', ANY, "x"),
        ("True", ANY, "True"),
        ("NaN", ANY, "NaN"),
    ],
)
def test_text_of_another_type_is_a_string(text: str, types: list[str], expected: object) -> None:
    assert json.loads(typed(text, frozenset(types))) == expected


@given(text=st.text(st.characters(exclude_categories=["Cs"])), at=st.integers(0, 50))
def test_strings_can_be_escaped_in_pieces(text: str, at: int) -> None:
    assert json.loads(f'"{escaped(text[:at])}{escaped(text[at:])}"') == text
    assert json.loads(typed(text, STRING)) == text


@pytest.mark.parametrize(
    ("text", "types", "found"),
    [
        ("5.0", {"integer"}, "5"),
        ("-3.00", {"integer", "null"}, "-3"),
        ("5.0", {"number"}, "5.0"),
        ("5.5", {"integer"}, '"5.5"'),
        ("5e1", {"integer"}, '"5e1"'),
    ],
)
def test_a_whole_number_is_an_integer(text: str, types: set[str], found: str) -> None:
    assert typed(text, types) == found

"""Relaxation drops unsupported keywords from lenient schemas, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.structured.compiled_grammar import build, compilable
from backend.structured.llguidance_source import llguidance_source
from backend.structured.schema_relaxation import relaxed
from backend.types import GrammarSpec
from tests.backend.structured.letters import letters
from tests.backend.structured.schemas import closed

EMAIL = r"^(?!\.)(?!.*\.\.)[a-z.]+@[a-z.]+$"


def compiled(schema: dict[str, Any], *, is_exact: bool = False) -> dict[str, Any]:
    """The schema that the engine enforces."""
    spec = GrammarSpec(kind="json_schema", text=json.dumps(schema), is_exact=is_exact)
    whole = json.loads(compilable(llguidance_source(spec, letters()), letters()).source)
    found: dict[str, Any] = whole["grammars"][1]["json_schema"]
    del found["x-guidance"]
    return found


@pytest.mark.parametrize(
    ("keywords", "left"),
    [
        ({"type": "string", "pattern": EMAIL, "minLength": 3}, {"type": "string", "minLength": 3}),
        ({"type": "string", "pattern": r"\bfoo\b"}, {"type": "string"}),
        ({"type": "string", "pattern": r"^\S+\Z"}, {"type": "string"}),
        (
            {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 5},
            {"type": "number", "maximum": 5},
        ),
        ({"type": "number", "maximum": 3.4028234663852886e38}, {"type": "number"}),
        (
            {
                "type": "object",
                "patternProperties": {"^a": {"type": "null"}, "b$": {"type": "integer"}},
                "additionalProperties": False,
            },
            {"type": "object"},
        ),
    ],
)
def test_unsupported_keywords_are_dropped(keywords: dict[str, Any], left: dict[str, Any]) -> None:
    kept = {"type": "string", "pattern": "^[a-z]{2}$"}
    found = compiled(closed({"a": keywords, "b": {"type": "array", "items": keywords}, "c": kept}))
    assert found == closed({"a": left, "b": {"type": "array", "items": left}, "c": kept})
    with pytest.raises(ValueError, match="."):
        compiled(closed({"a": keywords}), is_exact=True)


TEXT = {"type": "string"}
TWO = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}
COUNTED: list[dict[str, Any]] = [
    TWO | {"minProperties": 1},
    TWO | {"minProperties": 1, "maxProperties": 2},
    TWO | {"minProperties": 2, "additionalProperties": True},
    TWO | {"minProperties": 2, "additionalProperties": False},
    TWO | {"minProperties": 2, "required": ["a"], "additionalProperties": {"type": "integer"}},
    {"allOf": [{"type": "object", "minProperties": 2}, {"properties": TWO["properties"]}]},
    TWO | {"anyOf": [{"minProperties": 1}, {"required": ["c"]}]},
    {"$defs": {"two": TWO}, "$ref": "#/$defs/two", "minProperties": 1},
    {"properties": TWO["properties"], "minProperties": 1},
]


@pytest.mark.parametrize("schema", COUNTED, ids=json.dumps)
def test_a_count_of_properties_does_not_forbid_optional_ones(schema: dict[str, Any]) -> None:
    """Before, these were "unsatisfiable", or allowed no property that they list."""
    assert accepts(schema, '{"a":"x","b":"y"}')
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = closed({"o": inner}) | {key: schema[key] for key in schema.keys() & {"$defs"}}
    assert accepts(outer, '{"o":{"a":"x","b":"y"}}')
    assert "minProperties" not in json.dumps(compiled(schema))


def accepts(schema: dict[str, Any], text: str) -> bool:
    """Whether the text satisfies the lenient schema, as the engine enforces it."""
    source = llguidance_source(GrammarSpec(kind="json_schema", text=json.dumps(schema)), letters())
    matcher = build(compilable(source, letters()).source, letters())
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "minProperties": 1},
        {"type": "object", "minProperties": 1, "additionalProperties": TEXT},
        TWO | {"minProperties": 1, "additionalProperties": False},
        TWO | {"minProperties": 3, "required": ["a", "b"]},
        {"type": "object", "properties": {"minProperties": TEXT}},
    ],
    ids=json.dumps,
)
def test_a_count_that_can_be_enforced_stays(schema: dict[str, Any]) -> None:
    assert compiled(schema) == schema


@pytest.mark.parametrize(
    "schema",
    [
        TWO | {"minProperties": 3, "maxProperties": 2},
        TWO | {"minProperties": 3, "additionalProperties": False},
        TWO | {"minProperties": "1"},
    ],
    ids=json.dumps,
)
def test_a_count_that_nothing_satisfies_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="minProperties"):
        compiled(schema)


def test_names_and_values_that_look_like_keywords_stay() -> None:
    schema = closed(
        {
            "pattern": {"enum": [{"pattern": "(?=a)"}]},
            "patternProperties": {"type": "string"},
            "x": {"pattern": "(?=a)"},
        }
    )
    assert compiled(schema)["properties"] == {**schema["properties"], "x": {}}


def test_a_schema_that_is_wrong_is_still_refused() -> None:
    for wrong in ({"type": "string", "pattern": 3}, {"type": "string", "minLength": 2, "maxLength": 1}):
        with pytest.raises(ValueError, match="."):
            compiled(closed({"a": wrong, "b": {"pattern": "(?=a)"}}))


def test_schemas_embedded_in_lark_are_relaxed_if_lenient() -> None:
    def text(*, lenient: bool) -> str:
        schema = {"type": "string", "pattern": "(?=a)", "x-guidance": {"lenient": lenient}}
        lark = f"start: call\ncall: %json {json.dumps(schema)}\nother: /x/"
        return json.dumps({"grammars": [{"lark_grammar": lark}]})

    assert relaxed(text(lenient=False)) == text(lenient=False)
    found = relaxed(text(lenient=True))
    assert "(?=a)" not in found and compilable(text(lenient=True), letters()).source == found

"""`response_format` and vLLM's fields → GrammarSpec, and the refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.types import GrammarSpec
from gateway.errors import InvalidRequest
from gateway.requests.parse import typed
from gateway.requests.structured_output import grammar_for, with_reasoning
from gateway.requests.types import ChatRequest, CompletionRequest

CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def found(**fields: object) -> GrammarSpec | None:
    return grammar_for(typed({"model": "m", "prompt": "x"} | fields, CompletionRequest))


def schema_format(schema: object, **more: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema} | more}


def refusal(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        found(**fields)
    return refused.value


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"guided_json": None}])
def test_no_grammar_without_a_field(fields: dict[str, Any]) -> None:
    assert found(**fields) is None


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        (
            {"response_format": schema_format(CLOSED)},
            "json_schema",
            json.dumps(CLOSED, separators=(",", ":")),
        ),
        ({"guided_json": '{"type": "array"}'}, "json_schema", '{"type": "array"}'),
        ({"guided_json": {"type": "array"}}, "json_schema", '{"type":"array"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["x", "y"]}, "choice", '["x","y"]'),
        ({"guided_grammar": 'start: "x"'}, "lark", 'start: "x"'),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"structured_outputs": {"choice": ["x"]}}, "choice", '["x"]'),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, "regex", "a"),
    ],
)
def test_each_field(fields: dict[str, Any], kind: str, text: str) -> None:
    spec = found(**fields)
    assert spec is not None and (spec.kind, spec.text, spec.is_exact) == (kind, text, False)
    assert spec.param == next(name for name in fields if fields[name] != {"type": "text"})


def test_strict_schemas_are_exact() -> None:
    spec = found(response_format=schema_format(CLOSED, strict=True))
    assert spec is not None and spec.is_exact


OPEN = CLOSED | {"additionalProperties": True}
OPTIONAL = CLOSED | {"required": []}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array"}, 'type: "object"'),
        (CLOSED | {"anyOf": [CLOSED]}, "anyOf"),
        (OPEN, "additionalProperties"),
        (OPTIONAL, "Missing 'a'"),
        (CLOSED | {"properties": {"a": OPEN}}, "('properties', 'a')"),
        (CLOSED | {"$defs": {"d": {"anyOf": [OPTIONAL]}}}, "('$defs', 'd', 'anyOf', '0')"),
        (CLOSED | {"properties": {"a": {"type": "array", "items": OPEN}}}, "'items'"),
    ],
)
def test_strict_schemas_follow_the_documented_rules(schema: dict[str, Any], words: str) -> None:
    error = refusal(response_format=schema_format(schema, strict=True))
    assert (error.param, error.code) == ("response_format", "invalid_json_schema")
    assert words in error.message
    assert found(response_format=schema_format(schema, strict=False)) is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": schema_format({}, name="a b")}, "response_format.json_schema.name"),
        ({"response_format": schema_format({}, name="a\n")}, "response_format.json_schema.name"),
        ({"response_format": schema_format({}, color=1)}, "response_format.json_schema.color"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": {"enum": ["x" * 300_000]}}, "guided_json"),
        ({"guided_json": "no schema"}, "guided_json"),
        ({"guided_json": "true"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": '{"a":' * 5_000 + "1" + "}" * 5_000}, "guided_json"),
        ({"structured_outputs": {"json": '{"type"'}}, "structured_outputs"),
        (
            {"response_format": {**schema_format({}), "type": "json_object"}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {**schema_format({}), "type": "text"}, "guided_regex": "a"},
            "response_format.json_schema",
        ),
    ],
)
def test_the_invalid_field_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize("kind", ["xml", "x" * 17])
def test_an_unknown_type_is_refused_with_the_known_ones(kind: str) -> None:
    error = refusal(response_format={"type": kind})
    assert (error.param, error.code) == ("response_format.type", "invalid_value")
    assert "text, json_object, json_schema" in error.message
    assert (kind in error.message) == (kind == "xml")


def test_a_schema_too_deep_to_encode_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(2_000):
        deep = [deep]
    with pytest.raises(InvalidRequest) as caught:
        found(guided_json={"default": deep})
    assert caught.value.param == "guided_json"


def test_reasoning_comes_first() -> None:
    request = typed(
        {"model": "m", "messages": [{"role": "user"}], "response_format": {"type": "json_object"}},
        ChatRequest,
    )
    spec = grammar_for(request)
    specs = [with_reasoning(spec, begins_inside) for begins_inside in (None, True, False)]
    assert [each.thought for each in specs if each] == ["none", "inside", "whole"]
    assert with_reasoning(None, begins_inside=True) is None

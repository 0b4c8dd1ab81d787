"""llguidance's errors are explained without the parts of grammars and schemas that they quote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.errors import RequestError
from backend.structured.compiled_grammar import compilable
from backend.structured.grammar_errors import explanation
from backend.structured.llguidance_source import llguidance_source
from backend.types import GrammarSpec
from tests.backend.structured.letters import letters

SECRET = "canary77"


def explained(kind: str, text: str) -> str:
    """Why an exact schema or another grammar is refused."""
    spec = GrammarSpec(kind=kind, text=text, is_exact=True, param="x")  # type: ignore[arg-type]
    with pytest.raises((ValueError, RequestError)) as refused:
        compilable(llguidance_source(spec, letters()), letters())
    return str(refused.value)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("lark", f'start: "{SECRET}" {SECRET}', "at 1(8): unknown name"),
        ("lark", f'{SECRET} ::= "a', "Unexpected end of input at line 1"),
        ("lark", f"root ::= ({SECRET}", "Expected ')' at line 1"),
        ("lark", f"start: /({SECRET}/", "at 1(8): invalid regex: unclosed group"),
        ("lark", f'start: "a" %%{SECRET}', "at 1(13): it cannot be read"),
        ("lark", f'start: %json {{"type": "{SECRET}"}}', "failed to compile JSON schema: invalid type"),
        ("lark", f"start: /a/\n%import {SECRET}", "at 2(1): unknown import"),
        ("lark", f"start: <{SECRET}>", "unknown special token"),
        ("lark", f"start: @{SECRET}", "unknown grammar"),
        ("lark", f'start: "{SECRET}"{{5,2}}', "the end of a range is before its start"),
        ("lark", f'{SECRET}: "a"', "Expected ::= at line 1"),
        ("lark", f"{SECRET}", "at line 1"),
        ("regex", f"[{SECRET}", "invalid regex: unclosed character class"),
        ("regex", f"\\b{SECRET}", "look-around, word boundaries included"),
        ("regex", f"(\nerror: {SECRET}", "invalid regex: unclosed group"),
        ("choice", f'["{SECRET}", 5]', "Expected `str`, got `int`"),
        ("json_schema", f'{{"type": "{SECRET}', "the grammar cannot be read (Input data was truncated)"),
    ],
)
def test_grammars_are_explained_with_their_place(kind: str, text: str, words: str) -> None:
    found = explained(kind, text)
    assert words in found and SECRET not in found


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {SECRET: {"type": SECRET}}}, "invalid type"),
        ({"$ref": f"#/$defs/{SECRET}"}, "points to nothing"),
        ({"$ref": f"https://x/{SECRET}"}, "another document"),
        (
            {"type": "object", "properties": {SECRET: False}, "required": [SECRET]},
            "a required property is unsatisfiable",
        ),
        ({"type": "string", "pattern": f"({SECRET}"}, "invalid regex: unclosed group"),
        ({"type": "string", "format": SECRET}, "unknown format"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "minimum is greater than maximum"),
        ({"type": "object", "minProperties": 2, "maxProperties": 1}, "minProperties is greater than maxProp"),
        (
            {"type": "object", "minProperties": 1, "additionalProperties": False},
            "minProperties is greater than the number of properties",
        ),
        ({"type": "object", "minProperties": -1}, "expected positive integer for 'minProperties'"),
        ({"type": "integer", "minimum": SECRET}, "expected f64 for 'minimum'"),
        ({"uniqueItems": True, "type": "array"}, "the keyword 'uniqueItems' is not supported"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible types"),
        ({"properties": SECRET}, "'properties' must be of type object"),
        ({"enum": []}, "is empty"),
    ],
)
def test_schemas_are_explained_by_keyword(schema: dict[str, Any], words: str) -> None:
    found = explained("json_schema", json.dumps(schema))
    assert words in found and SECRET not in found


@pytest.mark.parametrize(
    "message",
    [
        f"something new about {SECRET}",
        f"at 1(2): {SECRET} must be an {SECRET}: too complex",
        f"required property 'Expected {SECRET} for '{SECRET}'' is unsatisfiable",
    ],
)
def test_other_messages_are_not_repeated(message: str) -> None:
    assert SECRET not in explanation(message)

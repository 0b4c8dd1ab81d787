"""Drops keywords that llguidance cannot compile, such as look-aheads, from JSON schemas that are not strict.

llguidance ignores unknown keywords but rejects values it cannot handle. Without this, a tool with such a
schema would work until a request forces its call.
"""

from __future__ import annotations

import json
import math
from typing import Any

from llguidance import LLMatcher

from backend.structured.json_schemas import rewritten

_COUNTS = ("minProperties", "maxProperties")
_NAMING = {"properties", "patternProperties", "$ref"}
_COMBINED = ("allOf", "anyOf", "oneOf")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def relaxed(source: str) -> str:
    """Return the llguidance source with the unsupported keywords of lenient schemas dropped."""
    return rewritten(source, _relax, is_lenient=True)


def countable(source: str) -> str:
    """Return the llguidance source without counts of properties in lenient schemas that it gets wrong.

    Where a listed property is optional, llguidance refuses a count in an exact schema. In a lenient one it
    forbids the optional properties instead, or calls the schema unsatisfiable.
    """
    return rewritten(source, _relax_counts, is_lenient=True) if _COUNTS[0] in source else source


def _relax(schema: dict[str, Any]) -> None:
    number = "integer" if schema.get("type") == "integer" else "number"
    for key in _BOUNDS:
        _drop_unsupported(schema, key, (int, float), number)
    for key in ("pattern", "format"):
        _drop_unsupported(schema, key, str, "string")
    named = schema.get("patternProperties")
    if isinstance(named, dict) and not _is_supported(
        {"patternProperties": dict.fromkeys(named, True)}, "object"
    ):
        del schema["patternProperties"]
        # additionalProperties exempts the properties that matched a pattern; without patterns it would not.
        schema.pop("additionalProperties", None)


def _relax_counts(schema: dict[str, Any]) -> None:
    """Drop a `minProperties` that llguidance counts wrongly: see `countable`."""
    combined = [
        each
        for key in _COMBINED
        for each in (schema[key] if isinstance(schema.get(key), list) else ())
        if isinstance(each, dict)
    ]
    parts = [schema, *combined]
    names_properties = any(part.keys() & _NAMING for part in parts)
    if (names_properties and combined) or "$ref" in schema or not _counts(schema):
        for part in parts:
            part.pop("minProperties", None)


def _counts(schema: dict[str, Any]) -> bool:
    """Whether llguidance counts the properties of this object right, whatever their values are."""
    given = {key: schema[key] for key in ("required", *_COUNTS, "additionalProperties") if key in schema}
    least = given.get("minProperties")
    if not isinstance(least, int):
        return True
    for key in ("properties", "patternProperties"):
        if isinstance(schema.get(key), dict):
            given[key] = dict.fromkeys(schema[key], True)
    if given.get("additionalProperties") is not False:
        given.pop("additionalProperties", None)
    found = _error(given, "object", lenient=False)
    return not found or least > _most_properties(schema)


def _most_properties(schema: dict[str, Any]) -> float:
    """The most properties of an object of this schema: one that requires more is refused, not relaxed."""
    most = schema.get("maxProperties")
    limits = [most] if isinstance(most, int) else []
    if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
        named = schema.get("properties")
        limits.append(len(named) if isinstance(named, dict) else 0)
    return min(limits, default=math.inf)


def _drop_unsupported(
    schema: dict[str, Any], key: str, kinds: type | tuple[type, ...], type_name: str
) -> None:
    """Drop a keyword with a value of the right type that llguidance cannot compile."""
    if isinstance(schema.get(key), kinds) and not _is_supported({key: schema[key]}, type_name):
        del schema[key]


def _is_supported(keywords: dict[str, Any], type_name: str) -> bool:
    return not _error(keywords, type_name, lenient=True)


def _error(keywords: dict[str, Any], type_name: str, *, lenient: bool) -> str:
    schema = {"type": type_name, **keywords, "x-guidance": {"lenient": lenient}}
    return str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema))))

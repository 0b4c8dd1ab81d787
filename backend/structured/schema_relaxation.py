"""Drops keywords that llguidance cannot compile, such as look-aheads, from JSON schemas that are not strict.

llguidance ignores unknown keywords but rejects values it cannot handle. Without this, a tool with such a
schema would work until a request forces its call.
"""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from backend.structured.json_schemas import rewritten

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def relaxed(source: str) -> str:
    """Return the llguidance source with the unsupported keywords of lenient schemas dropped."""
    return rewritten(source, _relax, is_lenient=True)


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


def _drop_unsupported(
    schema: dict[str, Any], key: str, kinds: type | tuple[type, ...], type_name: str
) -> None:
    """Drop a keyword with a value of the right type that llguidance cannot compile."""
    if isinstance(schema.get(key), kinds) and not _is_supported({key: schema[key]}, type_name):
        del schema[key]


def _is_supported(keywords: dict[str, Any], type_name: str) -> bool:
    schema = {"type": type_name, **keywords, "x-guidance": {"lenient": True}}
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))

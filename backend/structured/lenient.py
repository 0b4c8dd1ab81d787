"""JSON schemas that need not be enforced in full: without what the library cannot read, such as a look-ahead.

It ignores unknown keywords itself, but stumbles over values; then schemas that others have made would do for
a tool only until somebody forces its call.
"""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from backend.structured.json_schemas import rewritten

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def loosened(text: str) -> str:
    """The library's text, in which lenient schemas have no keyword that cannot be enforced."""
    return rewritten(text, _loosen, is_lenient=True)


def _loosen(schema: dict[str, Any]) -> None:
    number = "integer" if schema.get("type") == "integer" else "number"
    for key in _BOUNDS:
        _keep(schema, key, (int, float), number)
    for key in ("pattern", "format"):
        _keep(schema, key, str, "string")
    named = schema.get("patternProperties")
    if isinstance(named, dict) and not _can_read({"patternProperties": dict.fromkeys(named, True)}, "object"):
        del schema["patternProperties"]
        schema.pop("additionalProperties", None)  # which those that matched were exempt from


def _keep(schema: dict[str, Any], key: str, kinds: type | tuple[type, ...], type_name: str) -> None:
    """Drop a keyword whose value is of the right kind, and yet of no use."""
    if isinstance(schema.get(key), kinds) and not _can_read({key: schema[key]}, type_name):
        del schema[key]


def _can_read(keywords: dict[str, Any], type_name: str) -> bool:
    schema = {"type": type_name, **keywords, "x-guidance": {"lenient": True}}
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))

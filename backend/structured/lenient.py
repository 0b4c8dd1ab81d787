"""JSON schemas that need not be enforced in full: without what the library cannot read, such as a look-ahead.

It ignores unknown keywords itself, but stumbles over values; then schemas that others have made would do for
a tool only until somebody forces its call.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import LLMatcher

_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_DATA = ("enum", "const", "default", "examples", "x-guidance")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_IN_LARK = re.compile(r"(?m)(?<=%json )\{.*\}$")


def loosened(text: str) -> str:
    """The library's text, in which lenient schemas have no keyword that cannot be enforced."""
    whole = json.loads(text)
    for grammar in whole["grammars"]:
        if "json_schema" in grammar:
            grammar["json_schema"] = _loosened(grammar["json_schema"])
        else:
            grammar["lark_grammar"] = _IN_LARK.sub(_loosened_in_lark, grammar["lark_grammar"])
    return json.dumps(whole)


def _loosened_in_lark(found: re.Match[str]) -> str:
    try:
        return json.dumps(_loosened(json.loads(found[0])))
    except ValueError:  # several on a line, or none: a grammar of the user's own
        return found[0]


def _loosened(schema: dict[str, Any]) -> dict[str, Any]:
    options = schema.get("x-guidance")
    is_lenient = isinstance(options, dict) and options.get("lenient") is True
    found: dict[str, Any] = _usable(schema) if is_lenient else schema
    return found


def _usable(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(schema, list):
        return [_usable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _inside(key, value) for key, value in schema.items()}
    number = "integer" if found.get("type") == "integer" else "number"
    for key in _BOUNDS:
        _keep(found, key, (int, float), number)
    for key in ("pattern", "format"):
        _keep(found, key, str, "string")
    named = found.get("patternProperties")
    if isinstance(named, dict) and not _can_read({"patternProperties": dict.fromkeys(named, True)}, "object"):
        del found["patternProperties"]
        found.pop("additionalProperties", None)  # which those that matched were exempt from
    return found


def _inside(key: str, value: Any) -> Any:  # noqa: ANN401 - any JSON
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: _usable(each) for name, each in value.items()}
    return _usable(value)


def _keep(schema: dict[str, Any], key: str, kinds: type | tuple[type, ...], type_name: str) -> None:
    """Drop a keyword whose value is of the right kind, and yet of no use."""
    if isinstance(schema.get(key), kinds) and not _can_read({key: schema[key]}, type_name):
        del schema[key]


def _can_read(keywords: dict[str, Any], type_name: str) -> bool:
    schema = {"type": type_name, **keywords, "x-guidance": {"lenient": True}}
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))

"""Rewrites the JSON schemas in the library's text, those inside of Lark as well."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Change = Callable[[dict[str, Any]], None]

_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_DATA = ("enum", "const", "default", "examples", "x-guidance")
_IN_LARK = re.compile(r"(?m)(?<=%json )\{.*\}$")


def rewritten(text: str, change: Change, *, is_lenient: bool) -> str:
    """The text after `change` of each schema and subschema, of lenient schemas or of the others."""

    def in_lark(found: re.Match[str]) -> str:
        try:
            return json.dumps(_rewritten(json.loads(found[0]), change, is_lenient))
        except ValueError:  # more on the line than one schema: a grammar of the user's own
            return found[0]

    whole = json.loads(text)
    for grammar in whole["grammars"]:
        if "json_schema" in grammar:
            grammar["json_schema"] = _rewritten(grammar["json_schema"], change, is_lenient)
        else:
            grammar["lark_grammar"] = _IN_LARK.sub(in_lark, grammar["lark_grammar"])
    return json.dumps(whole)


def _rewritten(schema: dict[str, Any], change: Change, is_lenient: bool) -> Any:  # noqa: ANN401 - any JSON
    options = schema.get("x-guidance")
    found = isinstance(options, dict) and options.get("lenient") is True
    return _walk(schema, change) if found == is_lenient else schema


def _walk(schema: Any, change: Change) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(schema, list):
        return [_walk(each, change) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _inside(key, value, change) for key, value in schema.items()}
    change(found)
    return found


def _inside(key: str, value: Any, change: Change) -> Any:  # noqa: ANN401 - any JSON
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: _walk(each, change) for name, each in value.items()}
    return _walk(value, change)

"""Grammar rules for arguments that are elements: a value's text fits the parameter's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import InvalidRequest
from gateway.providers.engine.grammar_words import Words, json_rule, pattern
from gateway.tool_calls.schema_values import STRING, parameter_types

TEXT_LIMITS = ("pattern", "format", "minLength", "maxLength")


@dataclass(frozen=True, slots=True)
class Function:
    """What the rules are made from."""

    name: str
    schema: Mapping[str, Any]
    place: str  # of the schema in the request
    is_strict: bool


def element_rules(rule: str, function: Function, around: tuple[str, str], words: Words) -> list[str]:
    """`rule` and those that it needs: each parameter in the schema's order. Raises InvalidRequest."""
    properties = function.schema.get("properties") or {}
    required = set(function.schema.get("required") or ())
    names = [f"{rule}_p{i}" + ("" if key in required else "?") for i, key in enumerate(properties)]
    lines = [f"{rule}: {' '.join(names) or json.dumps('')}"]
    for i, key in enumerate(properties):
        types = parameter_types(function.schema, key)
        is_text = not types or "string" in types
        before = around[0].replace("{key}", key).replace("{string}", json.dumps(is_text))
        lines.append(f"{rule}_p{i}: {words.terms(before)} {rule}_v{i}")
        found = properties[key] if isinstance(properties[key], dict) else {}
        if not is_text:
            shared = {
                name: function.schema[name] for name in ("$defs", "definitions") if name in function.schema
            }
            lines.append(f"{rule}_v{i}: {rule}_j{i} {words.terms(around[1])}")
            lines.append(f"{rule}_j{i}: {json_rule({**found, **shared}, is_exact=function.is_strict)}")
        elif choices := _choices(found):
            lines.append(f"{rule}_v{i}: ({' | '.join(map(words.terms, choices))}) {words.terms(around[1])}")
        else:
            _check_text(function, key, found, types)
            lines += _text_rules(f"{rule}_v{i}", around[1], words)
    return lines


def _choices(schema: Mapping[str, Any]) -> list[str]:
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return values if values and all(isinstance(value, str) and value for value in values) else []


def _check_text(function: Function, key: str, schema: Mapping[str, Any], types: frozenset[str]) -> None:
    """A strict parameter is a string without further limits: a grammar of plain text knows no others."""
    limits = [limit for limit in TEXT_LIMITS if limit in schema]
    if not function.is_strict or (types == STRING and not limits):
        return
    what = f"has {limits[0]!r}" if limits else "may be a string or of another type"
    raise InvalidRequest(
        f"Invalid schema for function {function.name!r}: the parameter {key!r} {what}, which cannot be "
        "enforced in this model's syntax of calls; simplify it, or leave 'strict' out.",
        param=function.place,
        code="invalid_function_parameters",
    )


def _text_rules(rule: str, after: str, words: Words) -> list[str]:
    """Text up to what ends a value."""
    pieces = words.pieces(after)
    special = next((i for i, piece in enumerate(pieces) if piece.startswith("<[")), None)
    if special is None:
        return [f"{rule}[lazy]: /(?s:.*){pattern(after)}/"]
    return [f"{rule}: {rule.upper()} {' '.join(pieces[special:])}", f"{rule.upper()}: /(?s:.*)/"]

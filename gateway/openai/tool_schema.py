"""Whether a tool's `parameters` are a JSON Schema: the shape of the keywords that matter to models."""

from __future__ import annotations

from typing import Any

from gateway.errors import InvalidRequest

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
MAX_DEPTH = 32
MAX_PLACE_CHARS = 256
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def check_parameters(schema: dict[str, Any], where: str) -> None:
    """Raise InvalidRequest, naming the place, unless this describes an object."""
    kind = schema.get("type", "object")
    if kind != "object":
        raise _wrong(f"{where}.type", "expected 'object': arguments are an object")
    check_schema(schema, where)


def check_schema(schema: object, where: str, depth: int = 0) -> None:
    """Raise InvalidRequest, naming the place of what is no schema."""
    if isinstance(schema, bool) and depth:
        return
    if not isinstance(schema, dict):
        raise _wrong(where, "expected an object")
    if depth > MAX_DEPTH:
        raise _wrong(where, f"nested more than {MAX_DEPTH} deep")
    _check_type(schema, where)
    _check_names(schema, where)
    for inner, place in _inner(schema, where):
        check_schema(inner, place, depth + 1)


def _check_type(schema: dict[str, Any], where: str) -> None:
    kind = schema.get("type", "object")
    for each in kind if isinstance(kind, list) and kind else [kind]:
        if not isinstance(each, str) or each not in TYPES:
            raise _wrong(f"{where}.type", f"expected one of {', '.join(TYPES)}")


def _check_names(schema: dict[str, Any], where: str) -> None:
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _wrong(f"{where}.required", "expected an array of strings")
    if not isinstance(schema.get("enum", []), list):
        raise _wrong(f"{where}.enum", "expected an array")
    if not isinstance(schema.get("description", ""), str):
        raise _wrong(f"{where}.description", "expected a string")


def _inner(schema: dict[str, Any], where: str) -> list[tuple[object, str]]:
    found: list[tuple[object, str]] = []
    for keyword in _MAPS:
        named = schema.get(keyword, {})
        if not isinstance(named, dict):
            raise _wrong(f"{where}.{keyword}", "expected an object")
        found += [(inner, f"{where}.{keyword}.{name}") for name, inner in named.items()]
    for keyword in _LISTS:
        listed = schema.get(keyword, [])
        if not isinstance(listed, list):
            raise _wrong(f"{where}.{keyword}", "expected an array")
        found += [(inner, f"{where}.{keyword}[{index}]") for index, inner in enumerate(listed)]
    found += [(schema[key], f"{where}.{key}") for key in _SCHEMAS if key in schema]
    return found


def _wrong(where: str, what: str) -> InvalidRequest:
    place = where if len(where) <= MAX_PLACE_CHARS else where[:MAX_PLACE_CHARS] + "…"
    return InvalidRequest(f"Invalid schema at '{place}': {what}.", param=place, code="invalid_value")

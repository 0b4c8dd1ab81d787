"""Checks a tool's `parameters` as a JSON Schema: the types of the keywords that matter to models."""

from __future__ import annotations

from typing import Any

from gateway.errors import InvalidRequest
from gateway.requests.subschemas import LISTS, MAPS, MAX_DEPTH, Path, place, subschemas

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
MAX_PLACE_CHARS = 256


def check_parameters(schema: dict[str, Any], where: str) -> None:
    """Raise InvalidRequest, naming the place, unless this is the schema of an object."""
    kind = schema.get("type", "object")
    if kind != "object":
        raise _invalid(f"{where}.type", "expected 'object': arguments are an object")
    for path, node in subschemas(schema):
        fault = _fault(node, path)
        if fault is not None:  # only now: formatting a place for every schema would cost time
            keyword, expected = fault
            raise _invalid(where + place(path) + keyword, expected)


def _fault(node: object, path: Path) -> tuple[str, str] | None:
    """The error of one schema, not of its subschemas: the keyword (or "") and what was expected."""
    if isinstance(node, bool) and path:
        return None
    if not isinstance(node, dict):
        return "", "expected an object"
    if len(path) > MAX_DEPTH:
        return "", f"nested more than {MAX_DEPTH} deep"
    for keyword, value in node.items():
        expected = _expected(keyword, value)
        if expected:
            return f".{keyword}", f"expected {expected}"
    return None


def _expected(keyword: str, value: object) -> str:
    """What the keyword's value must be; "" when it is valid or the keyword is not checked."""
    if keyword == "type":
        kinds = value if isinstance(value, list) and value else [value]
        return "" if all(kind in TYPES for kind in kinds) else f"one of {', '.join(TYPES)}"
    if keyword == "required":
        is_valid = isinstance(value, list) and all(isinstance(name, str) for name in value)
        return "" if is_valid else "an array of strings"
    if keyword in MAPS:
        return "" if isinstance(value, dict) else "an object"
    if keyword == "enum" or keyword in LISTS:
        return "" if isinstance(value, list) else "an array"
    return "a string" if keyword == "description" and not isinstance(value, str) else ""


def _invalid(where: str, why: str) -> InvalidRequest:
    shown = where if len(where) <= MAX_PLACE_CHARS else where[:MAX_PLACE_CHARS] + "…"
    return InvalidRequest(f"Invalid schema at '{shown}': {why}.", param=shown, code="invalid_value")

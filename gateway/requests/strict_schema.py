"""OpenAI's rules for strict schemas: objects are closed and all of their properties required."""

from __future__ import annotations

from typing import Any

from backend.identifiers import KEY, quoted
from gateway.requests.subschemas import MAX_DEPTH, Path, shown_steps, subschemas

MAX_CONTEXT_CHARS = 256


def strict_fault(schema: dict[str, Any]) -> str | None:
    """The first violation with its place, in OpenAI's words; None for a strict schema."""
    if schema.get("type") != "object":
        return _at((), "schema must be a JSON Schema of 'type: \"object\"'")
    if "anyOf" in schema:
        return _at((), "'anyOf' is not permitted at the root")
    for path, node in subschemas(schema):
        if len(path) > MAX_DEPTH:
            return _at(path, f"nested more than {MAX_DEPTH} deep")
        fault = _fault(node) if isinstance(node, dict) else None
        if fault is not None:
            return _at(path, fault)
    return None


def _fault(node: dict[str, Any]) -> str | None:
    kinds = node.get("type")
    if "properties" not in node and kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        return None
    if node.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false"
    required, properties = node.get("required", []), node.get("properties", {})
    if not isinstance(required, list) or not isinstance(properties, dict):
        return "'required' must be an array and 'properties' an object"
    named = {key for key in required if isinstance(key, str)}
    missing = next(((index, key) for index, key in enumerate(properties) if key not in named), None)
    if missing is None:
        return None
    index, key = missing
    return (
        "'required' is required to be supplied and to be an array including every key in properties. "
        f"Missing {quoted(key, KEY, f'properties[{index}]')}"
    )


def _at(path: Path, fault: str) -> str:
    context = repr(tuple(map(str, shown_steps(path))))
    return f"In context={context if len(context) < MAX_CONTEXT_CHARS else '(…)'}, {fault}."

"""Values that models write as plain text → JSON, typed by the tool's schema."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gateway.tool_calls.json_scanner import (
    MAX_SCALAR_CHARS,
    SCALAR_CHARS,
    JsonScanner,
    NotACall,
    check_scalar,
)

Schema = Mapping[str, Any]
ANY: frozenset[str] = frozenset()
"""Any type: the schema does not say."""
STRING = frozenset(["string"])
_BY_FIRST = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_WHOLE = re.compile(r"-?[0-9]+\.0+")
_PYTHONS = {"none": "null", "null": "null", "true": "true", "false": "false"}
"""Python's spelling, which templates print and models copy."""


def escaped(text: str) -> str:
    """`text` as it is inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def parameter_types(function: Schema, name: str) -> frozenset[str]:
    """The JSON types that a function's schema allows for one parameter; ANY where it does not say."""
    properties = function.get("properties")
    found = properties.get(name) if isinstance(properties, dict) else None
    return frozenset(
        _types(function.get("additionalProperties") if found is None else found, function, set())
    )


def typed(text: str, types: Collection[str]) -> str:
    """`text` as JSON of one of these types; a string where it is none of them."""
    if types != STRING:
        kind, found = read_json(text.strip())
        if not kind and types:
            kind, found = read_json(_PYTHONS.get(text.strip().lower()) or _python_literal(text.strip()))
        if kind == "number" and "integer" in types and _WHOLE.fullmatch(found):
            kind, found = "integer", found.partition(".")[0]
        if kind and (not types or kind in types or (kind == "integer" and "number" in types)):
            return found
    return f'"{escaped(text)}"'


def _python_literal(text: str) -> str:
    """A Python list or dict as JSON; "" for anything else."""
    if text[:1] not in ("[", "{"):
        return ""
    try:
        with warnings.catch_warnings(action="ignore"):  # "\\d" in a string
            return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return ""


def _types(schema: object, root: Schema, seen: set[str]) -> Iterator[str]:
    """The types of a schema, with local references resolved, each once."""
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if kind is not None:
        yield from [kind] if isinstance(kind, str) else kind
        return
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    yield from (read_json(json.dumps(value))[0] for value in values)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)  # for all branches: what one has found need not be found again
        yield from _types(resolved(reference, root), root, seen)
    for word in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(word) or ():
            yield from _types(each, root, seen)


def resolved(reference: str, root: Schema) -> object:
    """What a local reference refers to; None where there is nothing."""
    found: object = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def read_json(text: str) -> tuple[str, str]:
    """The type of a JSON text, and the text with control characters in its strings escaped; or twice ""."""
    try:
        found = _checked(text)
    except NotACall:
        return "", ""
    number = "number" if set(text) & set(".eE") else "integer"
    return _BY_FIRST.get(text[0], number), found


def _checked(text: str) -> str:
    if text[:1] in SCALAR_CHARS and len(text) <= MAX_SCALAR_CHARS:
        check_scalar(text)
        return text
    scanner = JsonScanner()
    pieces = []
    for char in text:
        if scanner.is_complete:
            raise NotACall
        pieces.append(scanner.feed(char))
    if not scanner.is_complete:
        raise NotACall
    return "".join(pieces)

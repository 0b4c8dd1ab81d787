"""Walks all subschemas of a JSON Schema, with their paths."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[tuple[str | int, ...], ...]
"""Steps from the root: a keyword, followed by a name or index where it holds several schemas."""

MAX_DEPTH = 32
"""The deepest accepted schema, in steps: deeper ones are of no use to models and have long paths."""

MAPS = frozenset(["properties", "patternProperties", "$defs", "definitions"])
LISTS = frozenset(["anyOf", "oneOf", "allOf", "prefixItems"])
_SCHEMAS = frozenset(
    ["items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"]
)


def subschemas(schema: object) -> Iterator[tuple[Path, object]]:
    """The schema and all of its subschemas, breadth first; values that are not schemas are included.

    The walk has no depth limit: the caller stops after MAX_DEPTH.
    """
    waiting: deque[tuple[Path, object]] = deque([((), schema)])
    while waiting:
        path, node = waiting.popleft()
        yield path, node
        if isinstance(node, dict):
            waiting.extend(_inner(path, node))


def _inner(path: Path, node: Mapping[str, Any]) -> Iterator[tuple[Path, object]]:
    for keyword, value in node.items():
        if keyword in _SCHEMAS:
            yield (*path, (keyword,)), value
        elif keyword in MAPS and isinstance(value, dict):
            for name, inner in value.items():
                yield (*path, (keyword, name)), inner
        elif keyword in LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield (*path, (keyword, index)), inner

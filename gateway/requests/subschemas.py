"""Walks all subschemas of a JSON Schema, with their paths."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[tuple[str, int | None], ...]
"""Steps from the root: a keyword, and an index where it holds several schemas.

Schemas with names are counted as well, from 0: the names are the caller's, and places are shown in errors.
"""

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
            yield (*path, (keyword, None)), value
        elif keyword in MAPS and isinstance(value, dict):
            for index, inner in enumerate(value.values()):
                yield (*path, (keyword, index)), inner
        elif keyword in LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield (*path, (keyword, index)), inner


def place(path: Path) -> str:
    """A path as it is shown in errors: `.properties[2].items`, "" for the root."""
    return "".join(f".{keyword}" + ("" if index is None else f"[{index}]") for keyword, index in path)

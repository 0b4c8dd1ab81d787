"""Walks all subschemas of a JSON Schema, with their paths."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from backend.identifiers import KEY

Step = tuple[str] | tuple[str, int] | tuple[str, int, str]
"""A keyword, then an index where it holds several schemas, and the key where they have names."""

Path = tuple[Step, ...]
"""Steps from the root."""

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
            for index, (key, inner) in enumerate(value.items()):
                yield (*path, (keyword, index, key)), inner
        elif keyword in LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield (*path, (keyword, index)), inner


def shown_steps(path: Path) -> Iterator[str | int]:
    """Keywords, keys and indices for an error: `properties[2]` stands for a key that is no identifier."""
    for step in path:
        if len(step) == 3 and not KEY.fullmatch(step[2]):
            yield f"{step[0]}[{step[1]}]"
        else:
            yield step[0]
            yield from step[1:][-1:]  # the key, or the index in an array


def place(path: Path) -> str:
    """A path as it is shown in errors: `.properties.city.anyOf[1]`, "" for the root."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in shown_steps(path))

"""Integral floats: clients whose language has one number type send `1.0` where the API has an integer.

JSON itself has one number type (RFC 8259), and JSON Schema counts 1.0 as an integer.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

MAX_EXACT = 2**53
"""From here on, a float may stand for several integers."""


def with_integers(body: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A copy of the body, with an int for each integral float where `kind` has an int and no float."""
    converted: dict[str, Any] = _converted(body, _type_info(kind))
    return converted


@cache
def _type_info(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _converted(value: Any, kind: inspect.Type) -> Any:  # noqa: ANN401 - any JSON value
    kinds = _alternatives(kind)
    if isinstance(value, float):
        names = {type(each) for each in kinds}
        is_wanted = inspect.IntType in names and inspect.FloatType not in names
        return int(value) if is_wanted and value.is_integer() and abs(value) < MAX_EXACT else value
    for each in kinds:
        if isinstance(value, list) and isinstance(each, inspect.ListType):
            return [_converted(item, each.item_type) for item in value]
        if isinstance(value, dict) and isinstance(each, inspect.StructType):
            types = {field.name: field.type for field in each.fields}
            return {k: _converted(v, types[k]) if k in types else v for k, v in value.items()}
    return value


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    """The members of a union, without their annotations; of another type, itself."""
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [each for member in kind.types for each in _alternatives(member)]
    return [kind]

"""Schemas for grammar tests: handwritten, generated in any number, and hostile."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

_NAMES = ("name", "age", "city", "tags", "items", "price", "unit", "kind", "note", "ok", "x y", "größe")
_WORDS = ("red", "green", "blue", "small", "large", "a b", 'quo"te', "back\\slash", "ñandú", "")
_PATTERNS = ("^[a-z]{1,4}$", "^[0-9]{3}-[0-9]{2}$", "^(on|off)$", "^#[0-9a-f]{6}$")
_FORMATS = ("date", "time", "uuid", "ipv4")


def closed(properties: dict[str, Any]) -> Schema:
    """A strict object schema: all properties required, no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


HANDWRITTEN: tuple[Schema, ...] = (
    {"type": "object"},
    closed({"answer": {"type": "integer"}}),
    closed(
        {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        }
    ),
    closed({"sentiment": {"enum": ["positive", "neutral", "negative"]}, "score": {"type": "number"}}),
    closed({"steps": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3}}),
    closed({"when": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"}}),
    closed({"value": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]}}),
    closed({"point": {"$ref": "#/$defs/point"}})
    | {"$defs": {"point": closed({"x": {"type": "number"}, "y": {"type": "number"}})}},
    closed({"tree": {"$ref": "#/$defs/node"}})
    | {
        "$defs": {
            "node": closed(
                {
                    "value": {"type": "integer", "minimum": 0, "maximum": 9},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                }
            )
        }
    },
    closed({"code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}}),
    closed({"flag": {"const": True}, "nothing": {"type": "null"}}),
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"type": "integer", "minimum": -20, "maximum": 20},
    {"enum": ["a", 1, None, True, ["x"], {"y": 2}]},
    {
        "type": "object",
        "properties": {"known": {"type": "integer"}},
        "additionalProperties": {"type": "boolean"},
    },
)


def generated(seed: int) -> Schema:
    """A schema of an object with a few levels, deterministic in the seed."""
    rng = random.Random(seed)
    return _object(rng, depth=rng.randint(1, 3))


def corpus(count: int) -> list[Schema]:
    """The handwritten ones first, then generated ones."""
    return [*HANDWRITTEN, *(generated(seed) for seed in range(count))][:count]


def huge_enum(count: int) -> Schema:
    """An enum of `count` different objects, each of which becomes a path of the automaton."""
    return {"enum": [{"x": [f"y{i}"]} for i in range(count)]}


def nested_choices(depth: int) -> Schema:
    """Nested choices; the size triples with each level."""
    schema: Schema = {"type": "string"}
    for _ in range(depth):
        schema = {"oneOf": [schema, closed({"a": schema}), {"type": "array", "items": schema}]}
    return schema


def _any(rng: random.Random, depth: int) -> Schema:
    if depth > 0 and rng.random() < 0.45:
        return rng.choice((_object, _array, _choice))(rng, depth - 1)
    return rng.choice((_string, _string, _integer, _number, _fixed))(rng)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_NAMES, rng.randint(1, 4))
    properties = {name: _any(rng, depth) for name in names}
    schema = closed(properties)
    if rng.random() < 0.5:
        schema["required"] = [name for name in names if rng.random() < 0.6]
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": _any(rng, depth),
        "minItems": least,
        "maxItems": least + rng.randint(0, 2),
    }


def _choice(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random) -> Schema:
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 10)}


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-1000, 1000)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}


def _number(rng: random.Random) -> Schema:
    low = round(rng.uniform(-10, 10), 1)
    return {"type": "number", "minimum": low, "maximum": low + 10}


def _fixed(rng: random.Random) -> Schema:
    return rng.choice(
        (
            {"type": "boolean"},
            {"type": "null"},
            {"enum": rng.sample(_WORDS, 3)},
            {"const": rng.choice(_WORDS)},
        )
    )

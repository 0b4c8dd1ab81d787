"""Grammar rules for values in Gemma's notation: as JSON, with bare keys, and strings between quote tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.providers.engine.element_grammar import Function, in_order
from gateway.providers.engine.grammar_words import Words, json_rule, pattern
from gateway.tool_calls.parser import CallForm
from gateway.tool_calls.schema_values import resolved

Schema = Mapping[str, Any]
_BARE_KEY = re.compile(r"[\w.$ -]+")
_NOTES = frozenset(
    ("title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions")
)
_SHARED = frozenset(("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"))
_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_ENFORCED = {
    "array": frozenset(("items", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties")),
    "integer": _NUMBERS,
    "number": _NUMBERS,
}


def quoted_value_rules(rule: str, function: Function, form: CallForm, words: Words) -> list[str]:
    """`rule` and those that it needs: a function's parameters. Raises InvalidRequest."""
    rules = _Rules(rule, function, form, words)
    rules.check(function.schema, "object")
    schema = {"additionalProperties": False, **function.schema}
    return rules.members(rule, schema) + rules.lines


class _Rules:
    def __init__(self, rule: str, function: Function, form: CallForm, words: Words) -> None:
        self.lines: list[str] = []
        self._rule = rule
        self._function = function
        self._quote, self._separator = form.quote, form.separator
        self._words = words
        self._references: dict[str, str] = {}
        self._num_rules = 0
        self._any = self._text = ""

    def members(self, rule: str, schema: Schema) -> list[str]:
        """`rule`: what is between an object's braces."""
        properties: Mapping[str, object] = schema.get("properties") or {}
        required = set(schema.get("required") or ())
        more = schema.get("additionalProperties")
        if not properties and more is not False:
            body = f'{self._string()} ":" {self._value(more)}'
            return [f"{rule}: {self._repeated(f'({body})', 0, None)}"]
        names = []
        for key, each in properties.items():
            written = key if _BARE_KEY.fullmatch(key) else self._literal(key)
            names.append(self._name())
            self.lines.append(f"{names[-1]}: {self._words.terms(written + ':')} {self._value(each)}")
        return in_order(rule, names, [key in required for key in properties], self._separator)

    def check(self, schema: Schema, kind: str) -> None:
        """Raise InvalidRequest for a limit on a strict function's values that no rule enforces."""
        limits = set(schema) - _NOTES - _SHARED - _ENFORCED.get(kind, frozenset())
        if not limits or not self._function.is_strict:
            return
        raise InvalidRequest(
            f"Invalid schema for function {self._function.name!r}: {min(limits)!r} of a value of type "
            f"{kind!r} cannot be enforced in this model's syntax of calls; simplify it, or leave 'strict' "
            "out.",
            param=self._function.place,
            code="invalid_function_parameters",
        )

    def _name(self, prefix: str = "_q") -> str:
        self._num_rules += 1
        return f"{self._rule}{prefix}{self._num_rules}"

    def _value(self, schema: object) -> str:
        """The terms of a value of this schema."""
        if not isinstance(schema, dict) or not set(schema) - _NOTES:
            return self._anything()
        if isinstance(reference := schema.get("$ref"), str):
            if reference not in self._references:
                name = self._references[reference] = self._name()
                self.lines.append(f"{name}: {self._value(resolved(reference, self._function.schema))}")
            return self._references[reference]
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return self._one_of(self._words.terms(self._literal(value)) for value in values)
        for word in ("anyOf", "oneOf"):
            if branches := schema.get(word):
                return self._one_of(self._value(each) for each in branches)
        if len(parts := list(schema.get("allOf") or ())) == 1:
            return self._value({**{k: v for k, v in schema.items() if k != "allOf"}, **parts[0]})
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return self._one_of(self._typed(schema, kind) for kind in kinds)
        return self._typed(schema, kinds)

    def _typed(self, schema: Schema, kind: object) -> str:
        if not isinstance(kind, str):
            return self._anything()
        self.check(schema, kind)
        if kind == "string":
            return self._string()
        if kind == "array":
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            return f'"[" {self._repeated(self._value(schema.get("items")), least, most)} "]"'
        name = self._name("_j" if kind != "object" else "_q")
        if kind == "object":
            self.lines += self.members(name, schema)
            return f'"{{" {name} "}}"'
        limits = {key: value for key, value in schema.items() if key in _NUMBERS}
        found = json_rule({**limits, "type": kind}, is_exact=self._function.is_strict)
        self.lines.append(f"{name}: {found}")
        return name

    def _repeated(self, item: str, least: int, most: int | None) -> str:
        """From `least` to `most` items, separated."""
        if most == 0:
            return '""'
        more = f"({json.dumps(self._separator)} {item})"
        count = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        some = f"{item} {more}{'*' if count == '{0,}' else count}"
        return some if least else f"({some})?"

    def _one_of(self, bodies: Iterable[str]) -> str:
        return f"({' | '.join(dict.fromkeys(bodies))})"

    def _literal(self, value: object) -> str:
        if isinstance(value, str):
            return f"{self._quote}{value}{self._quote}"
        if isinstance(value, list):
            return f"[{self._separator.join(map(self._literal, value))}]"
        if isinstance(value, dict):
            members = (f"{self._literal(key)}:{self._literal(each)}" for key, each in value.items())
            return f"{{{self._separator.join(members)}}}"
        return json.dumps(value)

    def _string(self) -> str:
        """The rule of any string."""
        if not self._text:
            name = self._text = self._name()
            opening = self._words.terms(self._quote)
            if opening.startswith("<["):
                body = name.upper()
                self.lines += [f"{name}: {opening} {body} {opening}", f"{body}: /(?s:.*)/"]
            else:
                self.lines += [
                    f"{name}: {opening} {name}_e",
                    f"{name}_e[lazy]: /(?s:.*){pattern(self._quote)}/",
                ]
        return self._text

    def _anything(self) -> str:
        """The rule of any value."""
        if not self._any:
            name = self._any = self._name()
            kinds: list[object] = ["string", "number", "boolean", "null", "array", "object"]
            self.lines.append(f"{name}: {' | '.join(self._typed({}, kind) for kind in kinds)}")
        return self._any

"""Grammar rules for arguments that are elements: a value's text fits the parameter's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import InvalidRequest
from gateway.providers.engine.grammar_words import Words, json_rule, pattern
from gateway.tool_calls.parser import CallForm
from gateway.tool_calls.schema_values import STRING, parameter_types

TEXT_LIMITS = ("pattern", "format", "minLength", "maxLength")


@dataclass(frozen=True, slots=True)
class Function:
    """What the rules are made from."""

    name: str
    schema: Mapping[str, Any]
    place: str  # of the schema in the request
    is_strict: bool


def element_rules(rule: str, function: Function, form: CallForm, words: Words) -> list[str]:
    """`rule` and those that it needs: each parameter in the schema's order. Raises InvalidRequest."""
    properties = function.schema.get("properties") or {}
    required = set(function.schema.get("required") or ())
    names = [f"{rule}_p{i}" for i in range(len(properties))]
    lines = in_order(rule, names, [key in required for key in properties], form.separator)
    around = form.parameter
    for i, key in enumerate(properties):
        types = parameter_types(function.schema, key)
        is_text = not form.separator and (not types or "string" in types)
        before = around[0].replace("{key}", key).replace("{string}", json.dumps(is_text))
        lines.append(f"{rule}_p{i}: {words.terms(before)} {rule}_v{i}")
        found = properties[key] if isinstance(properties[key], dict) else {}
        if not is_text:
            shared = {
                name: function.schema[name] for name in ("$defs", "definitions") if name in function.schema
            }
            lines.append(f"{rule}_v{i}: {rule}_j{i} {words.terms(around[1])}")
            lines.append(f"{rule}_j{i}: {json_rule({**found, **shared}, is_exact=function.is_strict)}")
        elif choices := _choices(found):
            lines.append(f"{rule}_v{i}: ({' | '.join(map(words.terms, choices))}) {words.terms(around[1])}")
        else:
            _check_text(function, key, found, types)
            lines += _text_rules(f"{rule}_v{i}", around[1], words)
    return lines


def in_order(rule: str, names: Sequence[str], required: Sequence[bool], separator: str) -> list[str]:
    """`rule`: these rules in their order, the optional ones or not, with `separator` between them."""
    if not separator:
        found = [name + ("" if needed else "?") for name, needed in zip(names, required, strict=True)]
        return [f"{rule}: {' '.join(found) or json.dumps('')}"]
    after = [f" {rule}_t{i}" for i in range(1, len(names))] + [""]
    first = list(required).index(True) + 1 if any(required) else len(names)
    starts = [name + rest for name, rest in zip(names[:first], after, strict=False)]
    lines = [f"{rule}: {' | '.join(starts + ([] if any(required) else [json.dumps('')]))}"]
    for name, needed, itself, rest in zip(names[1:], required[1:], after[:-1], after[1:], strict=True):
        item = f"{json.dumps(separator)} {name}"
        lines.append(f"{itself.strip()}: {item if needed else f'({item})?'}{rest}")
    return lines


def _choices(schema: Mapping[str, Any]) -> list[str]:
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return values if values and all(isinstance(value, str) and value for value in values) else []


def _check_text(function: Function, key: str, schema: Mapping[str, Any], types: frozenset[str]) -> None:
    """A strict parameter is a string without further limits: a grammar of plain text knows no others."""
    limits = [limit for limit in TEXT_LIMITS if limit in schema]
    if not function.is_strict or (types == STRING and not limits):
        return
    what = f"has {limits[0]!r}" if limits else "may be a string or of another type"
    raise InvalidRequest(
        f"Invalid schema for function {function.name!r}: the parameter {key!r} {what}, which cannot be "
        "enforced in this model's syntax of calls; simplify it, or leave 'strict' out.",
        param=function.place,
        code="invalid_function_parameters",
    )


def _text_rules(rule: str, after: str, words: Words) -> list[str]:
    """Text up to what ends a value."""
    pieces = words.pieces(after)
    special = next((i for i, piece in enumerate(pieces) if piece.startswith("<[")), None)
    if special is None:
        return [f"{rule}[lazy]: /(?s:.*){pattern(after)}/"]
    return [f"{rule}: {rule.upper()} {' '.join(pieces[special:])}", f"{rule.upper()}: /(?s:.*)/"]

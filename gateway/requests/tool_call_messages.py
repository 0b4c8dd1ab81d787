"""Tool calls and tool results of earlier messages, as chat templates read them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from backend.identifiers import CALL_ID, quoted
from gateway.errors import InvalidRequest
from gateway.requests import refusals, unknown_fields
from gateway.requests.custom_tools import INPUT

# The last of each is ignored: OpenAI's client adds it to answers and sends it back with them.
CALL_FIELDS = ("id", "type", "function", "custom", "index")
CUSTOM_FIELDS = ("name", "input")
FUNCTION_FIELDS = ("name", "arguments", "parsed_arguments")
INVALID_ARGUMENTS = "invalid_arguments"
"""The one argument shown for an earlier call whose arguments are not a JSON object: their text."""
IDS_SHOWN = 4


def plain_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """`tool_calls` of an assistant's message, arguments parsed to a dict. Raises InvalidRequest."""
    if not isinstance(calls, list):
        raise refusals.wrong_type(where, "an array")
    plain = [_plain_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]
    counts = Counter(call["id"] for call in plain)
    if len(counts) < len(plain):
        repeated = [identifier for identifier, count in counts.items() if count > 1]
        raise refusals.wrong_value(where, f"two calls have the same id{_named(repeated)}")
    return plain


def _plain_call(call: object, where: str) -> dict[str, Any]:
    call = _object(call, CALL_FIELDS, where)
    kind = call.get("type", "function")
    if kind == "custom":
        return _custom_call(call, where)
    if kind != "function":
        raise refusals.wrong_value(f"{where}.type", "expected 'function' or 'custom'", kind)
    function = _object(call.get("function"), FUNCTION_FIELDS, f"{where}.function")
    name = _text(function, "name", f"{where}.function")
    given = function.get("arguments")
    if not isinstance(given, str):
        raise refusals.wrong_type(f"{where}.function.arguments", "a string")
    identifier = _text(call, "id", where)
    function = {"name": name, "arguments": _arguments(given)}
    return {"id": identifier, "type": "function", "function": function}


def _custom_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    """The call of a custom tool, as one of the function that stands for it."""
    custom = _object(call.get("custom"), CUSTOM_FIELDS, f"{where}.custom")
    name = _text(custom, "name", f"{where}.custom")
    if not isinstance(custom.get("input"), str):
        raise refusals.wrong_type(f"{where}.custom.input", "a string")
    function = {"name": name, "arguments": {INPUT: custom["input"]}}
    return {"id": _text(call, "id", where), "type": "function", "function": function}


def _arguments(given: str) -> dict[str, Any]:
    """Arguments that every template can render: an earlier call may have been cut or invalid."""
    try:
        found = json.loads(
            given or "{}", parse_float=_finite, parse_constant=_finite, object_pairs_hook=_unique_keys
        )
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {INVALID_ARGUMENTS: given}


def _finite(text: str) -> float:
    """A finite number: JSON has no others, and templates would render them as words. Raises ValueError."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object, unless a key is repeated: a dict would drop a value. Raises ValueError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("repeated key")
    return found


def check_results(messages: Sequence[dict[str, Any]]) -> None:
    """Raise InvalidRequest unless each message with calls is followed by exactly one result per call.

    Adds the function's name to each result, which some templates read.
    """
    open_calls: dict[str, str] = {}
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message["role"] != "tool":
            _check_answered(open_calls, where)
            open_calls = {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
            continue
        identifier = message["tool_call_id"]
        if identifier not in open_calls:
            raise refusals.wrong_value(
                f"{where}.tool_call_id",
                f"{quoted(identifier, CALL_ID, 'it')} matches no unanswered call of the assistant's message "
                f"before it{_named(open_calls)}",
            )
        message.setdefault("name", open_calls.pop(identifier))
    _check_answered(open_calls, f"messages[{len(messages) - 1}]")


def _check_answered(open_calls: dict[str, str], where: str) -> None:
    if not open_calls:
        return
    raise InvalidRequest(
        "A message with 'tool_calls' must be followed by a message of the role 'tool' for each call. "
        f"Calls without one: {len(open_calls)}{_named(open_calls)}.",
        param=where,
        code="invalid_value",
    )


def _named(ids: Iterable[str]) -> str:
    """` ('a', 'b')`: the ids that are identifiers, as many as an error shows."""
    shown = [name for identifier in ids if (name := quoted(identifier, CALL_ID))]
    more = ", …" if len(shown) > IDS_SHOWN else ""
    return f" ({', '.join(shown[:IDS_SHOWN])}{more})" if shown else ""


def _object(value: object, fields: Sequence[str], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refusals.wrong_type(where, "an object")
    for name in value:
        if name not in fields:
            unknown_fields.note(name, fields, f"{where}.")
    return value


def _text(holder: dict[str, Any], field: str, where: str) -> str:
    value = holder.get(field)
    if isinstance(value, str) and value:
        return value
    where = f"{where}.{field}"
    if value is None:
        raise refusals.missing(where)
    raise refusals.wrong_type(where, "a non-empty string")

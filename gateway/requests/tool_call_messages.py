"""Tool calls and their results in a conversation that goes on, as chat templates read them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from gateway.errors import InvalidRequest
from gateway.requests.field_support import unknown_field

# The last of each is not read: OpenAI's client adds it to answers, and sends it back with them.
CALL_FIELDS = ("id", "type", "function", "index")
FUNCTION_FIELDS = ("name", "arguments", "parsed_arguments")
INVALID_ARGUMENTS = "invalid_arguments"
"""What the model reads as the one argument of an earlier call whose arguments are no object: their text."""
MAX_ID_CHARS = 256
IDS_SHOWN = 4


def plain_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """`tool_calls` of an assistant's message with arguments as an object. Raises InvalidRequest."""
    if not isinstance(calls, list):
        raise _wrong_type(where, "an array")
    plain = [_plain_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]
    if len({call["id"] for call in plain}) < len(plain):
        raise _wrong(where, "two calls have the same id")
    return plain


def _plain_call(call: object, where: str) -> dict[str, Any]:
    call = _object(call, CALL_FIELDS, where)
    if call.get("type", "function") != "function":
        raise _wrong(f"{where}.type", "expected 'function'")
    function = _object(call.get("function"), FUNCTION_FIELDS, f"{where}.function")
    name = _text(function, "name", f"{where}.function")
    given = function.get("arguments")
    if not isinstance(given, str):
        raise _wrong_type(f"{where}.function.arguments", "a string")
    identifier = _text(call, "id", where)
    function = {"name": name, "arguments": _arguments(given)}
    return {"id": identifier, "type": "function", "function": function}


def _arguments(given: str) -> dict[str, Any]:
    """What templates can print of any text: a call may have been cut, and is shown to the model again."""
    try:
        found = json.loads(
            given or "{}", parse_float=_finite, parse_constant=_finite, object_pairs_hook=_without_twins
        )
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {INVALID_ARGUMENTS: given}


def _finite(text: str) -> float:
    """JSON has no others: a template would print one as a word. Raises ValueError."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values of one name neither is lost: that is no object to be printed. Raises ValueError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def check_results(messages: Sequence[dict[str, Any]]) -> None:
    """Every call has one result right behind its message, in any order, and there are no other results.

    Gives each result its function's name, which some templates read. Raises InvalidRequest.
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
            raise _wrong(
                f"{where}.tool_call_id", "it answers no open call of the assistant's message before it"
            )
        message.setdefault("name", open_calls.pop(identifier))
    _check_answered(open_calls, f"messages[{len(messages) - 1}]")


def _check_answered(open_calls: dict[str, str], where: str) -> None:
    if not open_calls:
        return
    ids = [identifier for identifier in open_calls if len(identifier) <= MAX_ID_CHARS][:IDS_SHOWN]
    raise InvalidRequest(
        "A message with 'tool_calls' must be followed by a message of the role 'tool' for each call. "
        f"Without one: {', '.join(map(repr, ids))}.",
        param=where,
        code="invalid_value",
    )


def _object(value: object, fields: Sequence[str], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong_type(where, "an object")
    for name in value:
        if name not in fields:
            raise unknown_field(name, fields, f"{where}.")
    return value


def _text(holder: dict[str, Any], field: str, where: str) -> str:
    value = holder.get(field)
    if isinstance(value, str) and value:
        return value
    where = f"{where}.{field}"
    if value is None:
        raise InvalidRequest(
            f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter"
        )
    raise _wrong_type(where, "a non-empty string")


def _wrong_type(where: str, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid type for '{where}': expected {expected}.", param=where, code="invalid_type"
    )


def _wrong(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid value for '{where}': {what}.", param=where, code="invalid_value")

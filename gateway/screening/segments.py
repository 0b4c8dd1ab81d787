"""The texts of a request body, with who wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from policies.guardrails import Segment

PROMPT_FIELDS = ("prompt", "suffix", "input")
SEGMENTS: dict[object, Segment] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

Change = Callable[[Segment, str], str]


def changed_body(body: dict[str, Any], change: Change) -> dict[str, Any]:
    """The body with `change` applied to every text: prompts, messages, tool calls, predictions."""
    changed = {name: _mapped(body[name], "user", change) for name in PROMPT_FIELDS if name in body}
    if isinstance(body.get("messages"), list):
        changed["messages"] = [_message(each, change) for each in body["messages"]]
    if isinstance(body.get("prediction"), dict):
        prediction = body["prediction"]
        changed["prediction"] = prediction | {
            "content": _mapped(prediction.get("content"), "assistant", change)
        }
    return body | changed


def texts(body: dict[str, Any]) -> list[tuple[Segment, str]]:
    """Every text that is not empty, in order."""
    found: list[tuple[Segment, str]] = []

    def note(segment: Segment, text: str) -> str:
        if text:
            found.append((segment, text))
        return text

    changed_body(body, note)
    return found


def user_turns(found: list[tuple[Segment, str]]) -> Iterator[str]:
    """What the user said, oldest first."""
    return (text for segment, text in found if segment == "user")


def _message(message: object, change: Change) -> object:
    """A message with its texts and the arguments of its tool calls changed. Unknown roles count as users."""
    if not isinstance(message, dict):
        return message
    segment = SEGMENTS.get(message.get("role"), "user")
    changed = dict(message)
    for name in ("content", "reasoning_content", "reasoning", "refusal"):
        if name in message:
            changed[name] = _mapped(message[name], segment, change)
    if isinstance(message.get("tool_calls"), list):
        changed["tool_calls"] = [_tool_call(each, change) for each in message["tool_calls"]]
    return changed


def _tool_call(call: object, change: Change) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    return call | {"function": function | {"arguments": change("assistant", arguments)}}


def _mapped(value: object, segment: Segment, change: Change) -> object:
    """A string, or the strings in a list of strings or of parts with a text."""
    if isinstance(value, str):
        return change(segment, value)
    if isinstance(value, list):
        return [_mapped(each, segment, change) for each in value]
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return value | {"text": change(segment, value["text"])}
    return value

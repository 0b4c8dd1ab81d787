"""The texts of a request body, with who wrote them."""

from __future__ import annotations

from typing import Any, Protocol

from policies.guardrails import Segment

PROMPT_FIELDS = ("prompt", "suffix", "input", "query")
SCHEMA_FIELDS = ("tools", "functions", "response_format")
SCHEMA_TEXTS = {"description", "title", "enum", "const", "default", "examples"}
MESSAGE_TEXTS = ("content", "reasoning_content", "reasoning", "reasoning_details", "refusal")
PART_TEXTS = ("text", "refusal", "thinking", "summary")
SEGMENTS: dict[str, Segment] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class Change(Protocol):
    """What becomes of a text; `in_json`: the text is a JSON document."""

    def __call__(self, segment: Segment, text: str, *, in_json: bool = False) -> str:
        """The text in its place."""
        ...


def changed_body(body: dict[str, Any], change: Change) -> dict[str, Any]:
    """The body with `change` applied to every text: prompts, documents, messages, tool calls, schemas."""
    changed = {name: _mapped(body[name], "user", change) for name in PROMPT_FIELDS if name in body}
    changed |= {name: _schema(body[name], change) for name in SCHEMA_FIELDS if name in body}
    if isinstance(body.get("documents"), list):
        changed["documents"] = [document(each, change) for each in body["documents"]]
    if isinstance(body.get("messages"), list):
        changed["messages"] = [_message(each, change) for each in body["messages"]]
    prediction = body.get("prediction")
    if isinstance(prediction, dict) and "content" in prediction:
        text = _mapped(prediction["content"], "assistant", change)
        changed["prediction"] = prediction | {"content": text}
    return body | changed


def longest_field(body: dict[str, Any]) -> str:
    """The field with the most characters in its texts."""
    return max(body, key=lambda name: sum(len(text) for _, text in texts({name: body[name]})))


def texts(body: dict[str, Any]) -> list[tuple[Segment, str]]:
    """Every text that is not empty, in order."""
    found: list[tuple[Segment, str]] = []

    def note(segment: Segment, text: str, *, in_json: bool = False) -> str:
        if text:
            found.append((segment, text))
        return text

    changed_body(body, note)
    return found


def wants_json(body: dict[str, Any]) -> bool:
    """Whether the answer is to be a JSON document."""
    response_format = body.get("response_format")
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    return kind in ("json_object", "json_schema") or body.get("guided_json") is not None


def _message(message: object, change: Change) -> object:
    """A message with its texts and the arguments of its tool calls changed. Unknown roles count as users."""
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    segment = SEGMENTS.get(role, "user") if isinstance(role, str) else "user"
    changed = dict(message)
    for name in MESSAGE_TEXTS:
        if name in message:
            changed[name] = _mapped(message[name], segment, change)
    if isinstance(message.get("tool_calls"), list):
        changed["tool_calls"] = [_tool_call(each, change) for each in message["tool_calls"]]
    if "function_call" in message:
        changed["function_call"] = _called(message["function_call"], "arguments", change)
    return changed


def _tool_call(call: object, change: Change) -> object:
    if not isinstance(call, dict):
        return call
    inputs = (("function", "arguments"), ("custom", "input"))
    return call | {kind: _called(call[kind], name, change) for kind, name in inputs if kind in call}


def _called(called: object, name: str, change: Change) -> object:
    """A function or custom tool with the text of its input changed."""
    if not isinstance(called, dict) or not isinstance(called.get(name), str):
        return called
    return called | {name: change("assistant", called[name], in_json=name == "arguments")}


def document(value: object, change: Change) -> object:
    """A document with all of its strings changed, whatever its shape."""
    if isinstance(value, str):
        return change("tool", value)
    if isinstance(value, list):
        return [document(each, change) for each in value]
    return (
        {name: document(each, change) for name, each in value.items()} if isinstance(value, dict) else value
    )


def _schema(value: object, change: Change, *, is_text: bool = False) -> object:
    """Tools or a schema with what their authors wrote in words changed."""
    if isinstance(value, str):
        return change("system", value) if is_text else value
    if isinstance(value, list):
        return [_schema(each, change, is_text=is_text) for each in value]
    if isinstance(value, dict):
        return {name: _schema(each, change, is_text=name in SCHEMA_TEXTS) for name, each in value.items()}
    return value


def _mapped(value: object, segment: Segment, change: Change) -> object:
    """A string, or the strings in a list of strings or of parts with a text."""
    if isinstance(value, str):
        return change(segment, value)
    if isinstance(value, list):
        return [_mapped(each, segment, change) for each in value]
    if isinstance(value, dict):
        return value | {name: _mapped(value[name], segment, change) for name in PART_TEXTS if name in value}
    return value

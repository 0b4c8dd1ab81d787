"""Input items of a response: normalised as they are stored, and as the messages of a chat."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backend.identifiers import KEY, quoted
from gateway.requests import refusals
from gateway.requests.parse import typed_at
from gateway.requests.reasoning_details import details

KINDS = ("message", "function_call", "function_call_output", "reasoning")
ROLES = ("user", "assistant", "system", "developer")
PARTS = ("input_text", "input_image", "output_text", "refusal")
Id = Annotated[str, Meta(min_length=1, max_length=256)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: str | list[Any]
    type: str = "message"
    id: Id | None = None
    status: str | None = None
    phase: str | None = None  # accepted: of an earlier answer


class _FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    call_id: Id
    name: str
    arguments: str
    id: Id | None = None
    status: str | None = None
    caller: Any = None
    namespace: str | None = None
    parsed_arguments: Any = None  # added to answers by OpenAI's client


class _FunctionCallOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    call_id: Id
    output: str | list[Any]
    id: Id | None = None
    status: str | None = None
    caller: Any = None
    name: str | None = None
    namespace: str | None = None


class _Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    summary: list[Any] = []
    content: list[Any] | None = None
    encrypted_content: str | None = None
    id: Id | None = None
    status: str | None = None


class ItemReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stands for an item of an earlier response's output."""

    type: str
    id: Id


class _ReasoningPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    text: str


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    annotations: list[Any] | None = None  # accepted, with the next: of an earlier answer
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None
    parsed: Any = None  # added to answers by OpenAI's client


_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def new_id(kind: str) -> str:
    """The id of a new item of this type."""
    return f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"


def output_id(kind: str, response_id: str, index: int) -> str:
    """The id of an item of a response's output; it tells which response that is."""
    return f"{_PREFIXES[kind]}_{response_id.partition('_')[2]}_{index}"


def response_of(item_id: str) -> str:
    """The id of the response whose output has this item; "" for an item of another origin."""
    number = item_id.partition("_")[2].rpartition("_")[0]
    return f"resp_{number}" if number else ""


def read_items(given: str | list[Any], where: str = "input") -> list[dict[str, Any]]:
    """The items of the field `where`, each with id, type and status, contents as lists of parts.

    Raises InvalidRequest naming the item and its field.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_item(value, f"{where}[{index}]") for index, value in enumerate(given)]


def chat_messages(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a chat for items from `read_items` or of an answer.

    Function calls that follow each other or an assistant's text are one message, as are the reasoning before
    them.
    """
    messages: list[dict[str, Any]] = []
    reasoning = ""
    signed: list[tuple[str, str]] = []
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            parts = item.get("content") or item["summary"]
            text = "\n".join(part["text"] for part in parts)
            reasoning += text
            if item.get("encrypted_content"):
                signed.append((text, item["encrypted_content"]))
            continue
        if kind == "function_call_output":
            output = _content(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
            continue
        if kind == "function_call":
            message = _open_assistant(messages, reasoning or signed)
            call = {"name": item["name"], "arguments": item["arguments"]}
            calls = message.setdefault("tool_calls", [])
            calls.append({"id": item["call_id"], "type": "function", "function": call})
        else:
            message = {"role": item["role"], "content": _content(item["content"])}
            messages.append(message)
        if reasoning and message["role"] == "assistant":
            message.setdefault("reasoning_content", reasoning)
        if signed and message["role"] == "assistant":
            message.setdefault("reasoning_details", details(signed))
        reasoning, signed = "", []
    return messages


def _open_assistant(messages: list[dict[str, Any]], reasoning: object) -> dict[str, Any]:
    """The last message, when it is the assistant's and no reasoning came since; else a new one."""
    if not messages or messages[-1]["role"] != "assistant" or reasoning:
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _item(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refusals.wrong_type(where, "an object")
    kind = value.get("type")
    if kind is None and "role" in value:
        kind = "message"
    if kind is None:
        raise refusals.missing(f"{where}.type")
    if kind not in KINDS:
        shown = quoted(kind, KEY, "it")
        expected = f"{shown} items are not supported here; expected one of {', '.join(KINDS)}"
        raise refusals.wrong_value(f"{where}.type", expected)
    item = _READERS[kind](value, where)
    return {"id": value.get("id") or new_id(kind), "type": kind, **item, "status": "completed"}


def _message(value: dict[str, Any], where: str) -> dict[str, Any]:
    message = typed_at(value, _Message, where)
    if message.role not in ROLES:
        raise refusals.wrong_value(f"{where}.role", f"expected one of {', '.join(ROLES)}", message.role)
    content = message.content
    if isinstance(content, str):
        kind = "output_text" if message.role == "assistant" else "input_text"
        parts = [{"type": kind, "text": content}]
        if message.role == "assistant":
            parts[0]["annotations"] = []  # type: ignore[assignment]
        return {"role": message.role, "content": parts}
    if not content:
        raise refusals.wrong_value(f"{where}.content", "expected at least one part")
    return {"role": message.role, "content": _parts(content, f"{where}.content")}


def _function_call(value: dict[str, Any], where: str) -> dict[str, Any]:
    call = typed_at(value, _FunctionCall, where)
    return {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}


def _function_call_output(value: dict[str, Any], where: str) -> dict[str, Any]:
    found = typed_at(value, _FunctionCallOutput, where)
    output: str | list[Any] = found.output
    if isinstance(output, list):
        output = _parts(output, f"{where}.output")
    return {"call_id": found.call_id, "output": output}


def _reasoning(value: dict[str, Any], where: str) -> dict[str, Any]:
    found = typed_at(value, _Reasoning, where)
    for name in ("summary", "content"):
        for index, part in enumerate(getattr(found, name) or ()):
            typed_at(part, _ReasoningPart, f"{where}.{name}[{index}]")
    item = {"summary": found.summary, "content": found.content or []}
    return item | ({"encrypted_content": found.encrypted_content} if found.encrypted_content else {})


_READERS = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}


def _parts(parts: list[Any], where: str) -> list[dict[str, Any]]:
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(parts)]


def _part(value: object, where: str) -> dict[str, Any]:
    if isinstance(value, dict) and isinstance(value.get("type"), str) and value["type"] not in PARTS:
        shown = quoted(value["type"], KEY, "it")
        expected = f"{shown} is not supported here; expected one of {', '.join(PARTS)}"
        raise refusals.wrong_value(f"{where}.type", expected)
    part = typed_at(value, _Part, where)
    if part.type == "input_image":
        if part.image_url is None:
            raise refusals.unsupported(f"{where}.image_url", "'input_image' needs an 'image_url' here")
        return {"type": part.type, "image_url": part.image_url, "detail": part.detail or "auto"}
    field = "refusal" if part.type == "refusal" else "text"
    text = getattr(part, field)
    if text is None:
        raise refusals.missing(f"{where}.{field}")
    found: dict[str, Any] = {"type": part.type, field: text}
    if part.type == "output_text":
        found["annotations"] = part.annotations or []
    return found


def _content(parts: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Parts as the content of a chat message; a single text as a string, which every upstream understands."""
    if isinstance(parts, str):
        return parts
    found = [_chat_part(part) for part in parts]
    is_text = len(found) == 1 and found[0]["type"] == "text"
    return found[0]["text"] if is_text else found


def _chat_part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part["detail"]}}
    return {"type": "text", "text": part["refusal"] if part["type"] == "refusal" else part["text"]}

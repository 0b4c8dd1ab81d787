"""Input items of a response: normalised as they are stored, and as the messages of a chat."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backend.identifiers import KEY, quoted
from gateway.openai.responses import call_items
from gateway.openai.responses.tools import OfferedTools
from gateway.requests import refusals
from gateway.requests.parse import typed_at
from gateway.requests.reasoning_details import details

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


class _Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    summary: list[Any] = []
    content: list[Any] | None = None
    encrypted_content: str | None = None
    id: Id | None = None
    status: str | None = None


class _AdditionalTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    tools: list[Any]
    role: str = "developer"
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


_PREFIXES = {"message": "msg", "reasoning": "rs", "additional_tools": "at", **call_items.PREFIXES}


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


def chat_messages(items: Sequence[dict[str, Any]], tools: OfferedTools | None = None) -> list[dict[str, Any]]:
    """The messages of a chat for items from `read_items` or of an answer; `tools` give calls their names.

    Calls that follow each other or an assistant's text are one message, as are the reasoning before them.
    """
    messages: list[dict[str, Any]] = []
    reasoning = ""
    signed: list[tuple[str, str]] = []
    call_ids: dict[str, str] = {}  # by the ids of items: the output of a shell may name either
    for item in items:
        kind = item["type"]
        if kind == "additional_tools":
            continue
        if kind == "reasoning":
            parts = item.get("content") or item["summary"]
            text = "\n".join(part["text"] for part in parts)
            reasoning += text
            if item.get("encrypted_content"):
                signed.append((text, item["encrypted_content"]))
            continue
        if kind in OUTPUTS:
            call_id = item["call_id"]
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call_ids.get(call_id, call_id),
                    "content": _output_content(item),
                }
            )
            continue
        if kind in CALLS:
            message = _open_assistant(messages, reasoning or signed)
            call_ids[item["id"]] = item["call_id"]
            found = call_items.call_in_chat(item)
            name = found.name if tools is None else tools.chat_name(found.name, found.namespace)
            call = {"name": name, "arguments": found.arguments}
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


def _output_content(item: dict[str, Any]) -> str | list[dict[str, Any]]:
    return _content(call_items.search_result(item["tools"]) if "tools" in item else item["output"])


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
    if not isinstance(kind, str) or kind not in _READERS:
        shown = quoted(kind, KEY, "it")
        expected = f"{shown} items are not supported here; expected one of {', '.join(_READERS)}"
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


def _output(value: dict[str, Any], where: str) -> dict[str, Any]:
    call_id, output = call_items.output(value, where)
    if isinstance(output, list):
        output = _parts(output, f"{where}.output")
    return {"call_id": call_id, "output": output}


def _additional_tools(value: dict[str, Any], where: str) -> dict[str, Any]:
    found = typed_at(value, _AdditionalTools, where)
    return {"role": "developer", "tools": found.tools}


def _reasoning(value: dict[str, Any], where: str) -> dict[str, Any]:
    found = typed_at(value, _Reasoning, where)
    for name in ("summary", "content"):
        for index, part in enumerate(getattr(found, name) or ()):
            typed_at(part, _ReasoningPart, f"{where}.{name}[{index}]")
    item = {"summary": found.summary, "content": found.content or []}
    return item | ({"encrypted_content": found.encrypted_content} if found.encrypted_content else {})


_READERS = {
    "message": _message,
    "function_call": call_items.function_call,
    "function_call_output": _output,
    "reasoning": _reasoning,
    "custom_tool_call": call_items.custom_tool_call,
    "custom_tool_call_output": _output,
    "local_shell_call": call_items.local_shell_call,
    "local_shell_call_output": call_items.local_shell_call_output,
    "tool_search_call": call_items.tool_search_call,
    "tool_search_output": call_items.tool_search_output,
    "additional_tools": _additional_tools,
}
CALLS = tuple(kind for kind in _READERS if kind.endswith("_call"))
OUTPUTS = tuple(kind for kind in _READERS if kind.endswith("_output"))


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

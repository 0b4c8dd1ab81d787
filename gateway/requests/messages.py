"""OpenAI's messages → the plain dicts that chat templates read: text, tool calls and tool results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.requests import refusals, unknown_fields
from gateway.requests.tool_call_messages import check_results, plain_calls

ROLES = ("system", "developer", "user", "assistant", "tool")
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where answers carry their reasoning; clients send it back with the answer."""
READ_FIELDS = ("role", "content", "name", "refusal", "tool_calls", "tool_call_id", *REASONING_FIELDS)
CLIENT_FIELDS = ("parsed", "reasoning_details")
"""Ignored in answers that come back: the content as OpenAI's client parsed it; what an upstream signed."""
FIELDS = (*READ_FIELDS, *CLIENT_FIELDS, "audio", "function_call", "annotations")
TEXT_PART_FIELDS = ("type", "text", "prompt_cache_breakpoint")
MESSAGE_CHARS = 64
"""What a message adds to its text in the template, roughly."""
PART_KINDS = {"image_url": "images", "input_audio": "audio", "file": "files"}


def text_size(messages: Sequence[dict[str, Any]]) -> int:
    """A cheap estimate of the characters that a template will render, for valid and invalid messages."""
    size = MESSAGE_CHARS * len(messages)
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            size += len(content)
        elif isinstance(content, list):
            size += sum(len(str(part.get("text"))) for part in content if isinstance(part, dict))
        if message.get("tool_calls"):
            size += len(str(message["tool_calls"]))
        reasonings = (message.get(name) for name in REASONING_FIELDS)
        size += sum(len(reasoning) for reasoning in reasonings if isinstance(reasoning, str))
    return size


def refuse_images(messages: Sequence[dict[str, Any]]) -> None:
    """Raise InvalidRequest for an image, where the model could see but only its decoder is loaded."""
    for index, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") == "image_url":
                raise refusals.unsupported(
                    f"messages[{index}].content[{number}].type",
                    "this checkpoint's image tower is not loaded; send text only",
                )


def plain_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a chat template. Raises InvalidRequest naming the message and its field.

    `developer` becomes `system`, the role that templates know. Text parts are joined by a newline.
    """
    plain = [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]
    check_results(plain)
    return plain


def _plain(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role == "function":
        raise refusals.unsupported(
            f"{where}.role", "messages of the role 'function' are deprecated: use 'tool'"
        )
    if role not in ROLES:
        if role is None:
            raise refusals.missing(f"{where}.role")
        raise refusals.wrong_value(f"{where}.role", f"expected one of {', '.join(ROLES)}")
    for name, value in message.items():
        if name not in FIELDS:
            unknown_fields.note(name, FIELDS, f"{where}.")
            continue
        if name not in (*READ_FIELDS, *CLIENT_FIELDS) and value not in (None, [], ""):
            raise refusals.unsupported(f"{where}.{name}", f"'{name}' in a message is not supported yet")
    reasoning = _reasoning(message, where)
    plain: dict[str, Any] = {
        "role": "system" if role == "developer" else str(role),
        "content": content_text(message, where),
    }
    if reasoning:
        plain["reasoning_content"] = reasoning
    plain |= _tool_fields(message, where)
    author = message.get("name")
    if isinstance(author, str):
        plain["name"] = author
    elif author is not None:
        raise refusals.wrong_type(f"{where}.name", "a string")
    return plain


def _tool_fields(message: dict[str, Any], where: str) -> dict[str, Any]:
    """`tool_calls` and `tool_call_id`, for a message that has them."""
    calls, identifier = message.get("tool_calls"), message.get("tool_call_id")
    if calls not in (None, []) and message["role"] != "assistant":
        raise refusals.unsupported(
            f"{where}.tool_calls", "'tool_calls' belong to messages of the role 'assistant'"
        )
    if message["role"] != "tool":
        if identifier is not None:
            raise refusals.unsupported(
                f"{where}.tool_call_id", "'tool_call_id' belongs to messages of the role 'tool'"
            )
        return {"tool_calls": plain_calls(calls, f"{where}.tool_calls")} if calls not in (None, []) else {}
    where = f"{where}.tool_call_id"
    if identifier is None:
        raise refusals.missing(where)
    if not isinstance(identifier, str):
        raise refusals.wrong_type(where, "a string")
    return {"tool_call_id": identifier}


def _reasoning(message: dict[str, Any], where: str) -> str:
    """The reasoning of an assistant's message, "" without any; the template may drop it."""
    given = [(name, message[name]) for name in REASONING_FIELDS if message.get(name) not in (None, "")]
    for name, reasoning in given:
        if message["role"] != "assistant":
            raise refusals.unsupported(
                f"{where}.{name}", f"'{name}' belongs to messages of the role 'assistant'"
            )
        if not isinstance(reasoning, str):
            raise refusals.wrong_type(f"{where}.{name}", "a string")
        if reasoning != given[0][1]:
            raise refusals.unsupported(
                f"{where}.{name}", f"'{name}' differs from '{given[0][0]}'; send one of them"
            )
    return given[0][1] if given else ""


def content_text(message: dict[str, Any], where: str) -> str:
    """The content of message `where` as text. Raises InvalidRequest naming the field."""
    content = message.get("content")
    if content is None and (_reasoning(message, where) or message.get("tool_calls")):
        return ""  # cut at the token limit within its reasoning, or tool calls only
    if message.get("refusal") not in (None, ""):
        content = _refusal(message, where)
    if isinstance(content, str):
        return content
    where = f"{where}.content"
    if isinstance(content, list) and content:
        return "\n".join(
            _part_text(part, f"{where}[{index}]", message["role"]) for index, part in enumerate(content)
        )
    if "content" not in message:
        raise refusals.missing(where)
    raise refusals.wrong_type(where, "a string or a non-empty array of text parts")


def _refusal(message: dict[str, Any], where: str) -> str:
    """The refusal that an earlier answer holds instead of content."""
    if message["role"] != "assistant" or message.get("content") not in (None, "", []):
        raise refusals.unsupported(
            f"{where}.refusal", "'refusal' belongs to an assistant's message without 'content'"
        )
    refusal = message["refusal"]
    if not isinstance(refusal, str):
        raise refusals.wrong_type(f"{where}.refusal", "a string")
    return refusal


def _part_text(part: object, where: str, role: str) -> str:
    if not isinstance(part, dict):
        raise refusals.wrong_type(where, "an object")
    kind = part.get("type")
    if isinstance(kind, str) and kind in PART_KINDS:
        raise refusals.unsupported(
            f"{where}.type", f"{PART_KINDS[kind]} ({kind!r} parts) are not supported by this model"
        )
    is_refusal = kind == "refusal" and role == "assistant"
    field = "refusal" if is_refusal else "text"
    if kind != "text" and not is_refusal:
        raise refusals.wrong_value(f"{where}.type", "expected 'text'", kind)
    if not isinstance(part.get(field), str):
        raise refusals.wrong_type(f"{where}.{field}", "a string")
    for name in part:
        if name not in TEXT_PART_FIELDS and name != field:
            unknown_fields.note(name, TEXT_PART_FIELDS, f"{where}.")
    text: str = part[field]
    return text

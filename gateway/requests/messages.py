"""OpenAI's messages → the plain records that chat templates read: text, tool calls and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.errors import InvalidRequest
from gateway.requests.field_support import unknown_field
from gateway.requests.tool_call_messages import check_results, plain_calls

ROLES = ("system", "developer", "user", "assistant", "tool")
THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Where an answer shows its thinking; clients send it back with the answer."""
READ_FIELDS = ("role", "content", "name", "refusal", "tool_calls", "tool_call_id", *THOUGHT_FIELDS)
CLIENT_FIELDS = ("parsed",)
"""What OpenAI's client adds to answers, and sends back with them: the content once more, not read."""
FIELDS = (*READ_FIELDS, *CLIENT_FIELDS, "audio", "function_call", "annotations")
TEXT_PART_FIELDS = ("type", "text", "prompt_cache_breakpoint")
MESSAGE_CHARS = 64
"""What a message costs a template beside its text, in characters."""
LONGEST_ROLE = 16
"""Longer ones are not quoted in errors: they may be somebody's text in the wrong place."""
PART_KINDS = {"image_url": "images", "input_audio": "audio", "file": "files"}


def text_size(messages: Sequence[dict[str, Any]]) -> int:
    """Characters that a template will read, roughly and at little cost; says nothing about validity."""
    size = MESSAGE_CHARS * len(messages)
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            size += len(content)
        elif isinstance(content, list):
            size += sum(len(str(part.get("text"))) for part in content if isinstance(part, dict))
        if message.get("tool_calls"):
            size += len(str(message["tool_calls"]))
        thoughts = (message.get(name) for name in THOUGHT_FIELDS)
        size += sum(len(thought) for thought in thoughts if isinstance(thought, str))
    return size


def plain_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a chat template; raises InvalidRequest naming the message and field at fault.

    `developer` becomes `system`: templates know no other word. Text parts are joined by a newline.
    """
    plain = [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]
    check_results(plain)
    return plain


def _plain(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role == "function":
        raise _refused(f"{where}.role", "messages of the role 'function' are deprecated: use 'tool'")
    if role not in ROLES:
        raise _wrong_role(role, f"{where}.role")
    for name, value in message.items():
        if name not in FIELDS:
            raise unknown_field(name, FIELDS, f"{where}.")
        if name not in (*READ_FIELDS, *CLIENT_FIELDS) and value not in (None, [], ""):
            raise _refused(f"{where}.{name}", f"'{name}' in a message is not supported yet")
    thought = _thought(message, where)
    plain: dict[str, Any] = {
        "role": "system" if role == "developer" else str(role),
        "content": content_text(message, where),
    }
    if thought:
        plain["reasoning_content"] = thought
    plain |= _tool_fields(message, where)
    author = message.get("name")
    if isinstance(author, str):
        plain["name"] = author
    elif author is not None:
        raise _wrong_type(f"{where}.name", "a string")
    return plain


def _tool_fields(message: dict[str, Any], where: str) -> dict[str, Any]:
    """What ties calls and results together, where there are any."""
    calls, identifier = message.get("tool_calls"), message.get("tool_call_id")
    if calls not in (None, []) and message["role"] != "assistant":
        raise _refused(f"{where}.tool_calls", "'tool_calls' belong to messages of the role 'assistant'")
    if message["role"] != "tool":
        if identifier is not None:
            raise _refused(f"{where}.tool_call_id", "'tool_call_id' belongs to messages of the role 'tool'")
        return {"tool_calls": plain_calls(calls, f"{where}.tool_calls")} if calls not in (None, []) else {}
    where = f"{where}.tool_call_id"
    if identifier is None:
        raise InvalidRequest(
            f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter"
        )
    if not isinstance(identifier, str):
        raise _wrong_type(where, "a string")
    return {"tool_call_id": identifier}


def _thought(message: dict[str, Any], where: str) -> str:
    """The thinking behind an assistant's answer, "" without any; the template decides what becomes of it."""
    given = [(name, message[name]) for name in THOUGHT_FIELDS if message.get(name) not in (None, "")]
    for name, thought in given:
        if message["role"] != "assistant":
            raise _refused(f"{where}.{name}", f"'{name}' belongs to messages of the role 'assistant'")
        if not isinstance(thought, str):
            raise _wrong_type(f"{where}.{name}", "a string")
        if thought != given[0][1]:
            raise _refused(f"{where}.{name}", f"'{name}' differs from '{given[0][0]}'; send one of them")
    return given[0][1] if given else ""


def content_text(message: dict[str, Any], where: str) -> str:
    """The text that a template reads; raises InvalidRequest naming the field at fault of message `where`."""
    content = message.get("content")
    if content is None and (_thought(message, where) or message.get("tool_calls")):
        return ""  # an answer that was cut while it was thought over, or of calls alone
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
        raise InvalidRequest(
            f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter"
        )
    raise _wrong_type(where, "a string or a non-empty array of text parts")


def _refusal(message: dict[str, Any], where: str) -> str:
    """What the model said instead of an answer, in a conversation that goes on."""
    if message["role"] != "assistant" or message.get("content") not in (None, "", []):
        raise _refused(f"{where}.refusal", "'refusal' belongs to an assistant's message without 'content'")
    refusal = message["refusal"]
    if not isinstance(refusal, str):
        raise _wrong_type(f"{where}.refusal", "a string")
    return refusal


def _part_text(part: object, where: str, role: str) -> str:
    if not isinstance(part, dict):
        raise _wrong_type(where, "an object")
    kind = part.get("type")
    if isinstance(kind, str) and kind in PART_KINDS:
        raise _refused(
            f"{where}.type", f"{PART_KINDS[kind]} ({kind!r} parts) are not supported by this model"
        )
    is_refusal = kind == "refusal" and role == "assistant"
    field = "refusal" if is_refusal else "text"
    if kind != "text" and not is_refusal:
        raise InvalidRequest(
            f"Invalid value for '{where}.type': expected 'text'.",
            param=f"{where}.type",
            code="invalid_value",
        )
    if not isinstance(part.get(field), str):
        raise _wrong_type(f"{where}.{field}", "a string")
    for name in part:
        if name not in TEXT_PART_FIELDS and name != field:
            raise unknown_field(name, TEXT_PART_FIELDS, f"{where}.")
    text: str = part[field]
    return text


def _wrong_role(role: object, where: str) -> InvalidRequest:
    if role is None:
        return InvalidRequest(
            f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter"
        )
    shown = f" (got {role!r})" if isinstance(role, str) and len(role) <= LONGEST_ROLE else ""
    return InvalidRequest(
        f"Invalid value for '{where}'{shown}: expected one of {', '.join(ROLES)}.",
        param=where,
        code="invalid_value",
    )


def _wrong_type(where: str, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid type for '{where}': expected {expected}.", param=where, code="invalid_type"
    )


def _refused(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{what[:1].upper()}{what[1:]}.", param=param, code="unsupported_parameter")

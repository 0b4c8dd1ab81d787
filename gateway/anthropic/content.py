"""Anthropic's messages with content blocks → the messages of a chat."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backend.identifiers import KEY, quoted
from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.parse import typed_at
from gateway.requests.reasoning_details import OURS, REDACTED, details

ROLES = ("user", "assistant", "system")
USER_BLOCKS = ("text", "image", "document", "tool_result")
ASSISTANT_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")

Id = Annotated[str, Meta(min_length=1, max_length=256)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: str | list[Any]


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    text: str
    cache_control: Any = None  # accepted, here and below: the prefix tree finds shared prefixes
    citations: Any = None  # of an earlier answer; its text has the quotations
    parsed_output: Any = None  # added to answers by Anthropic's client


class _Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    thinking: str
    signature: str = ""


class _RedactedThinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    data: str


class _ToolUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    id: Id
    name: str
    input: dict[str, Any]
    cache_control: Any = None
    caller: Any = None
    toolset_name: Any = None


class _ToolResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    tool_use_id: Id
    content: str | list[Any] = ""
    is_error: bool | None = None
    cache_control: Any = None
    toolset_name: Any = None


class _Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    source: dict[str, Any]
    cache_control: Any = None


class _ImageSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    url: str | None = None
    data: str | None = None
    media_type: str | None = None


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    source: dict[str, Any]
    title: str | None = None
    context: str | None = None
    cache_control: Any = None
    citations: Any = None


class _DocumentSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    data: str | None = None
    media_type: str | None = None
    content: str | list[Any] | None = None


def chat_messages(messages: list[Any]) -> list[dict[str, Any]]:
    """The messages of a chat; a message with tool results becomes several.

    Raises InvalidRequest naming the message, the block and its field.
    """
    found: list[dict[str, Any]] = []
    for index, given in enumerate(messages):
        where = f"messages[{index}]"
        message = typed_at(given, _Message, where)
        if message.role not in ROLES:
            expected = f"expected one of {', '.join(ROLES)}"
            raise refusals.wrong_value(f"{where}.role", expected, message.role)
        if isinstance(message.content, str):
            found.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            found.append(_assistant(message.content, f"{where}.content"))
        elif message.role == "system":
            found.append(system_message(message.content, f"{where}.content"))
        else:
            found += _user(message.content, f"{where}.content")
    return found


def system_message(system: str | list[Any], where: str = "system") -> dict[str, Any]:
    """The chat message of `system`: a text or text blocks. Raises InvalidRequest."""
    if isinstance(system, str):
        return {"role": "system", "content": system}
    texts = []
    for index, block in enumerate(system):
        _kind(block, f"{where}[{index}]", ("text",))
        texts.append(typed_at(block, _Text, f"{where}[{index}]").text)
    return {"role": "system", "content": "\n".join(texts)}


def _user(blocks: list[Any], where: str) -> list[dict[str, Any]]:
    """Tool messages for the results, then a user message with the other blocks."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if _kind(block, place, USER_BLOCKS) == "tool_result":
            if parts:
                raise InvalidRequest(
                    f"'{place}': 'tool_result' blocks must come before the other blocks of a message.",
                    param=place,
                    code="invalid_value",
                )
            results.append(_result(block, place))
        else:
            parts.append(_part(block, place))
    if not parts and not results:
        raise refusals.wrong_value(where, "expected at least one block")
    return [*results, {"role": "user", "content": _plain(parts)}] if parts else results


def _assistant(blocks: list[Any], where: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[tuple[str, str]] = []  # each with its signature
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        kind = _kind(block, place, ASSISTANT_BLOCKS)
        if kind == "text":
            texts.append(typed_at(block, _Text, place).text)
        elif kind == "thinking":
            thought = typed_at(block, _Thinking, place)
            thoughts.append((thought.thinking, thought.signature))
        elif kind == "redacted_thinking":
            thoughts.append(("", REDACTED + typed_at(block, _RedactedThinking, place).data))
        else:
            calls.append(_call(typed_at(block, _ToolUse, place)))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if reasoning := "\n".join(text for text, _ in thoughts if text):
        message["reasoning_content"] = reasoning
    if signed := [each for each in thoughts if each[1] and not each[1].startswith(OURS)]:
        message["reasoning_details"] = details(signed)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: _ToolUse) -> dict[str, Any]:
    arguments = msgspec.json.encode(block.input).decode()
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _result(block: object, where: str) -> dict[str, Any]:
    """A tool message; a chat has no field for errors, so its text says that it is one."""
    result = typed_at(block, _ToolResult, where)
    content: str | list[dict[str, Any]] = ""
    if isinstance(result.content, str):
        content = result.content
    else:
        kinds = ("text", "image", "document")
        for index, each in enumerate(result.content):
            _kind(each, f"{where}.content[{index}]", kinds)
        content = _plain([_part(each, f"{where}.content[{i}]") for i, each in enumerate(result.content)])
    if result.is_error and isinstance(content, str):
        content = f"Error: {content}"
    elif result.is_error:
        content = [{"type": "text", "text": "Error:"}, *content]
    return {"role": "tool", "tool_call_id": result.tool_use_id, "content": content}


def _part(block: object, where: str) -> dict[str, Any]:
    """A text, image or document as a part of a chat message."""
    kind = block["type"] if isinstance(block, dict) else ""
    if kind == "image":
        return _image(typed_at(block, _Image, where), where)
    if kind == "document":
        return {"type": "text", "text": _document(typed_at(block, _Document, where), where)}
    return {"type": "text", "text": typed_at(block, _Text, where).text}


def _plain(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A single text as a string, which every upstream understands; other parts as they are."""
    if not parts:
        return ""
    text: str = parts[0].get("text", "")
    return text if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _image(block: _Image, where: str) -> dict[str, Any]:
    source = typed_at(block.source, _ImageSource, f"{where}.source")
    if source.type == "url" and source.url is not None:
        url = source.url
    elif source.type == "base64" and source.data is not None and source.media_type is not None:
        url = f"data:{source.media_type};base64,{source.data}"
    else:
        expected = "expected 'url' with a url, or 'base64' with media_type and data"
        raise refusals.wrong_value(f"{where}.source.type", expected, source.type)
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: _Document, where: str) -> str:
    """A document that is text, under its title and context."""
    source = typed_at(block.source, _DocumentSource, f"{where}.source")
    if source.type == "text" and source.data is not None:
        text = source.data
    elif source.type == "content" and isinstance(source.content, str):
        text = source.content
    elif source.type == "content" and source.content is not None:
        text = system_message(source.content, f"{where}.source.content")["content"]
    else:
        raise refusals.unsupported(
            f"{where}.source.type",
            f"documents{refusals.got(source.type)} are supported as 'text' and 'content' only",
        )
    return "\n".join(line for line in (block.title, block.context, text) if line)


def _kind(block: object, where: str, known: tuple[str, ...]) -> str:
    """The block's type. Raises InvalidRequest unless it is one of `known`."""
    if not isinstance(block, dict):
        raise refusals.wrong_type(where, "an object")
    kind = block.get("type")
    if kind is None:
        raise refusals.missing(f"{where}.type")
    if kind not in known:
        shown = quoted(kind, KEY, "it")
        expected = f"{shown} is not supported here; expected one of {', '.join(known)}"
        raise refusals.wrong_value(f"{where}.type", expected)
    return str(kind)

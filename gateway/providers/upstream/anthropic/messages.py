"""The messages of a chat → Anthropic's, with content blocks, and the system prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gateway.requests import refusals
from gateway.requests.messages import ROLES, content_text
from gateway.requests.tool_call_messages import plain_calls

SIGNATURE = "reasoning_signature"
"""The field of an assistant's message with the signature of its reasoning; Anthropic's API checks it."""
_DATA_URL = re.compile(r"data:(?P<media_type>[\w.+-]+/[\w.+-]+);base64,(?P<data>[A-Za-z0-9+/=_-]+)\Z")


def messages_and_system(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Anthropic's messages, consecutive ones of a role joined, and all system messages as one text.

    Raises InvalidRequest naming the message and its field.
    """
    found: list[dict[str, Any]] = []
    system: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if role not in ROLES:
            raise refusals.wrong_value(f"{where}.role", f"expected one of {', '.join(ROLES)}")
        if role in ("system", "developer"):
            system.append(content_text(message, where))
            continue
        blocks = _assistant(message, where) if role == "assistant" else _user(message, where)
        name = "assistant" if role == "assistant" else "user"
        if found and found[-1]["role"] == name:
            found[-1]["content"] += blocks
        elif blocks:
            found.append({"role": name, "content": blocks})
    return found, "\n\n".join(system)


def may_think(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether thinking can be on: within a tool loop Anthropic's API wants the signed thinking back."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return True
        if message.get("tool_calls") and not message.get(SIGNATURE):
            return False
    return True


def _assistant(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    signature, thinking = message.get(SIGNATURE), message.get("reasoning_content")
    if isinstance(signature, str) and isinstance(thinking, str):
        blocks.append({"type": "thinking", "thinking": thinking, "signature": signature})
    text = content_text(message, where)
    if text:
        blocks.append({"type": "text", "text": text})
    calls = plain_calls(message.get("tool_calls") or [], f"{where}.tool_calls")
    for call in calls:
        function = call["function"]
        block = {
            "type": "tool_use",
            "id": call["id"],
            "name": function["name"],
            "input": function["arguments"],
        }
        blocks.append(block)
    return blocks


def _user(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The blocks of a user's message or a tool's."""
    content = message.get("content")
    if isinstance(content, list) and content:
        blocks = [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    else:
        text = content_text(message, where)
        blocks = [{"type": "text", "text": text}] if text else []
    if message["role"] == "user":
        return blocks
    identifier = message.get("tool_call_id")
    if not isinstance(identifier, str):
        raise refusals.missing(f"{where}.tool_call_id")
    return [{"type": "tool_result", "tool_use_id": identifier, "content": blocks}]


def _part(part: object, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in ("text", "image_url"):
        raise refusals.wrong_value(f"{where}.type", "expected 'text' or 'image_url'")
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise refusals.wrong_type(f"{where}.text", "a string")
        return {"type": "text", "text": part["text"]}
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str):
        raise refusals.missing(f"{where}.image_url.url")
    if found := _DATA_URL.match(url):
        return {"type": "image", "source": {"type": "base64", **found.groupdict()}}
    if not url.startswith(("https://", "http://")):
        raise refusals.wrong_value(f"{where}.image_url.url", "expected an http(s) URL or a base64 data URL")
    return {"type": "image", "source": {"type": "url", "url": url}}

"""The messages of a chat → Anthropic's, with content blocks, and the system prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.providers.upstream.chat_turns import answered_call, turns_and_system
from gateway.providers.upstream.parts import Image, message_parts
from gateway.requests.messages import content_text
from gateway.requests.reasoning_details import REDACTED, ReasoningBlock, read_blocks
from gateway.requests.tool_call_messages import plain_calls


def messages_and_system(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Anthropic's messages, consecutive ones of a role joined, and all system messages as one text.

    Raises InvalidRequest naming the message and its field.
    """
    return turns_and_system(messages, _blocks)


def may_think(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether thinking can be on: within a tool loop Anthropic's API wants the signed thinking back."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return True
        if message.get("tool_calls") and not _signed(message, "messages"):
            return False
    return True


def _blocks(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    return (_assistant if message["role"] == "assistant" else _user)(message, where)


def _assistant(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    blocks = [_thinking(block) for block in _signed(message, where)]
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


def _signed(message: dict[str, Any], where: str) -> list[ReasoningBlock]:
    """The reasoning that this API has signed."""
    return [block for block in read_blocks(message, where) if block.is_anthropic]


def _thinking(block: ReasoningBlock) -> dict[str, Any]:
    if block.signature.startswith(REDACTED):
        return {"type": "redacted_thinking", "data": block.signature.removeprefix(REDACTED)}
    return {"type": "thinking", "thinking": block.text, "signature": block.signature}


def _user(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The blocks of a user's message or a tool's."""
    blocks = [_block(part) for part in message_parts(message, where)]
    if message["role"] == "user":
        return blocks
    identifier = answered_call(message, where)
    return [{"type": "tool_result", "tool_use_id": identifier, "content": blocks}]


def _block(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}

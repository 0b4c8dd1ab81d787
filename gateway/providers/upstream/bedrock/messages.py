"""The messages of a chat → Converse's, with content blocks, and the system prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.providers.upstream.chat_turns import answered_call, turns_and_system
from gateway.providers.upstream.parts import Image, message_parts
from gateway.requests import refusals
from gateway.requests.messages import content_text
from gateway.requests.reasoning_details import REDACTED, REDACTED_BEDROCK, ReasoningBlock, read_blocks
from gateway.requests.tool_call_messages import plain_calls

FORMATS = ("png", "jpeg", "gif", "webp")
_URL_SCHEMES = ("s3://",)


def messages_and_system(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Converse's messages, consecutive ones of a role joined, and all system messages as one text.

    Raises InvalidRequest naming the message and its field.
    """
    return turns_and_system(messages, _blocks)


def called_functions(messages: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the functions that Converse's messages call, each once."""
    blocks = [block for message in messages for block in message["content"] if "toolUse" in block]
    return list(dict.fromkeys(block["toolUse"]["name"] for block in blocks))


def _blocks(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    return (_assistant if message["role"] == "assistant" else _user)(message, where)


def _assistant(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    signed = read_blocks(message, where)
    blocks: list[dict[str, Any]] = [
        {"reasoningContent": found} for block in signed if (found := _reasoning(block))
    ]
    text = content_text(message, where)
    if text:
        blocks.append({"text": text})
    for call in plain_calls(message.get("tool_calls") or [], f"{where}.tool_calls"):
        function = call["function"]
        use = {"toolUseId": call["id"], "name": function["name"], "input": function["arguments"]}
        blocks.append({"toolUse": use})
    return blocks


def _reasoning(block: ReasoningBlock) -> dict[str, Any]:
    """A block for the model that wrote it; {} for those of other APIs."""
    if block.signature.startswith(REDACTED_BEDROCK):
        return {"redactedContent": block.signature.removeprefix(REDACTED_BEDROCK)}
    if block.is_anthropic and not block.signature.startswith(REDACTED):
        return {"reasoningText": {"text": block.text, "signature": block.signature}}
    return {}


def _user(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The blocks of a user's message or a tool's."""
    parts = message_parts(message, where, _URL_SCHEMES)
    blocks = [_block(part, f"{where}.content[{index}]") for index, part in enumerate(parts)]
    if message["role"] == "user":
        return blocks
    identifier = answered_call(message, where)
    return [{"toolResult": {"toolUseId": identifier, "content": blocks}}]


def _block(part: str | Image, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    kind = part.media_type.removeprefix("image/") or part.url.rpartition(".")[2].replace("jpg", "jpeg")
    if kind not in FORMATS:
        raise refusals.wrong_value(f"{where}.image_url.url", f"expected an image: {', '.join(FORMATS)}")
    source: dict[str, Any] = {"s3Location": {"uri": part.url}} if part.url else {"bytes": part.data}
    return {"image": {"format": kind, "source": source}}

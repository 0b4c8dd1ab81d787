"""The messages of a chat → Gemini's contents, and the system instruction."""

from __future__ import annotations

from collections.abc import Sequence
from mimetypes import guess_type
from typing import Any

from gateway.providers.upstream.chat_turns import answered_call, turns_and_system
from gateway.providers.upstream.parts import Image, message_parts
from gateway.requests import refusals
from gateway.requests.messages import content_text
from gateway.requests.reasoning_details import read_blocks
from gateway.requests.tool_call_messages import plain_calls

SIGNATURE = "gemini:"
"""Begins the signatures of calls, as messages carry them."""
NO_SIGNATURE = "skip_thought_signature_validator"
"""Google's value for calls whose signature is not known; models since Gemini 3 refuse calls without one."""
_URL_SCHEMES = ("https://", "http://", "gs://")


def contents_and_system(
    messages: Sequence[dict[str, Any]], *, needs_signatures: bool
) -> tuple[list[dict[str, Any]], str]:
    """Gemini's contents, consecutive ones of a role joined, and all system messages as one text.

    Raises InvalidRequest naming the message and its field.
    """
    functions: dict[str, str] = {}  # call id → name, which a result must repeat

    def parts_of(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
        if message["role"] == "assistant":
            return _model(message, where, functions, needs_signatures=needs_signatures)
        if message["role"] == "tool":
            return [_result(message, where, functions)]
        return [_part(part) for part in message_parts(message, where, _URL_SCHEMES)]

    return turns_and_system(messages, parts_of, "model", "parts")


def _model(
    message: dict[str, Any], where: str, functions: dict[str, str], *, needs_signatures: bool
) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if text := content_text(message, where):
        parts.append({"text": text})
    signed = (block.signature for block in read_blocks(message, where))
    signatures = [each.removeprefix(SIGNATURE) for each in signed if each.startswith(SIGNATURE)]
    if not signatures and needs_signatures:
        signatures.append(NO_SIGNATURE)
    for call in plain_calls(message.get("tool_calls") or [], f"{where}.tool_calls"):
        function = call["function"]
        functions[call["id"]] = function["name"]
        part: dict[str, Any] = {
            "functionCall": {"id": call["id"], "name": function["name"], "args": function["arguments"]}
        }
        if signatures:  # of parallel calls, only the first has one
            part["thoughtSignature"] = signatures.pop(0)
        parts.append(part)
    return parts


def _result(message: dict[str, Any], where: str, functions: dict[str, str]) -> dict[str, Any]:
    """A function's response: texts are its output, images its parts."""
    identifier = answered_call(message, where)
    if identifier not in functions:
        expected = "expected the id of a call in an assistant's message before it"
        raise refusals.wrong_value(f"{where}.tool_call_id", expected)
    parts = message_parts(message, where, _URL_SCHEMES)
    output = "\n".join(part for part in parts if isinstance(part, str))
    response: dict[str, Any] = {
        "id": identifier,
        "name": functions[identifier],
        "response": {"output": output},
    }
    if images := [_part(part) for part in parts if isinstance(part, Image)]:
        response["parts"] = images
    return {"functionResponse": response}


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    if not part.url:
        return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    media_type = guess_type(part.url.partition("?")[0])[0]
    return {"fileData": {"fileUri": part.url} | ({"mimeType": media_type} if media_type else {})}

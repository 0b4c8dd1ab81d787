"""The messages of a chat → turns of user and model in the words of another API, and the system prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.requests import refusals
from gateway.requests.messages import ROLES, content_text

Part = dict[str, Any]


def turns_and_system(
    messages: Sequence[dict[str, Any]],
    parts_of: Callable[[dict[str, Any], str], list[Part]],
    model_role: str = "assistant",
    parts_key: str = "content",
) -> tuple[list[dict[str, Any]], str]:
    """The turns, consecutive messages of a role joined, and all system messages as one text.

    `parts_of` gives the parts of a message and gets its place for errors; a tool's message is the user's.
    Raises InvalidRequest naming the message and its field.
    """
    turns: list[dict[str, Any]] = []
    system: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if role not in ROLES:
            raise refusals.wrong_value(f"{where}.role", f"expected one of {', '.join(ROLES)}")
        if role in ("system", "developer"):
            system.append(content_text(message, where))
            continue
        parts = parts_of(message, where)
        name = model_role if role == "assistant" else "user"
        if turns and turns[-1]["role"] == name:
            turns[-1][parts_key] += parts
        elif parts:
            turns.append({"role": name, parts_key: parts})
    return turns, "\n\n".join(system)


def answered_call(message: dict[str, Any], where: str) -> str:
    """The id of the call whose result a tool's message is. Raises InvalidRequest."""
    identifier = message.get("tool_call_id")
    if not isinstance(identifier, str):
        raise refusals.missing(f"{where}.tool_call_id")
    return identifier

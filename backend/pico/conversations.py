"""A task instance as a conversation in OpenAI's format: messages and tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from backend.pico.tasks.base import Context, Instance, Tool, Turn
from backend.pico.tasks.tool_calls import parse_calls

Message = dict[str, Any]


class Conversation(TypedDict):
    """Keyword arguments of `render` and `encode_training`."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None


def messages_of(instance: Instance, *, thinking: bool) -> Conversation:
    """Return the instance's context and question with its answer as the last message.

    With `thinking`, the answer has its steps in `reasoning_content`, "" if the instance has none.
    """
    context = instance.context
    asked = [*context.turns, Turn("user", instance.prompt), *context.after]
    answer: Message = {"role": "assistant", "content": instance.answer}
    if thinking:
        answer["reasoning_content"] = instance.thought
    messages = [*_system(context), *_messages(asked), answer]
    return {"messages": messages, "tools": [tool_schema(tool) for tool in context.tools] or None}


def tool_schema(tool: Tool) -> dict[str, Any]:
    """Return the tool's definition in OpenAI's format."""
    parameters = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in tool.parameters},
        "required": [name for name, _ in tool.parameters],
    }
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _system(context: Context) -> list[Message]:
    return [{"role": "system", "content": context.system}] if context.system else []


def _messages(turns: Iterable[Turn]) -> list[Message]:
    """Convert turns to messages; calls get ids, and their results refer to them in order."""
    messages: list[Message] = []
    pending: list[str] = []
    for turn in turns:
        if turn.role == "tool":
            messages.append({"role": "tool", "content": turn.content, "tool_call_id": pending.pop(0)})
            continue
        calls = parse_calls(turn.content) if turn.role == "assistant" else None
        if calls is None:
            messages.append({"role": turn.role, "content": turn.content})
            continue
        pending = [f"call_{len(messages)}_{index}" for index in range(len(calls))]
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": list(map(_tool_call, pending, calls))}
        )
    return messages


def _tool_call(identifier: str, call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {
        "id": identifier,
        "type": "function",
        "function": {"name": call["name"], "arguments": arguments},
    }

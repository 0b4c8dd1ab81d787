"""Items that are calls of tools, or their outputs: as they are read, and what they are in a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from gateway.openai.responses.tools import LOCAL_SHELL, TOOL_SEARCH
from gateway.requests import refusals
from gateway.requests.custom_tools import arguments_of
from gateway.requests.parse import typed_at

PREFIXES = {
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
}
"""Prefixes of the ids of these items."""
Id = Annotated[str, Meta(min_length=1, max_length=256)]


class _Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    id: Id | None = None
    status: str | None = None
    caller: Any = None
    created_by: Any = None


class _Call(_Item, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"is_async": "async"}):
    call_id: Id
    name: str
    namespace: str | None = None
    is_async: bool | None = None


class _FunctionCall(_Call, frozen=True, kw_only=True, forbid_unknown_fields=True):
    arguments: str
    parsed_arguments: Any = None  # added to answers by OpenAI's client


class _CustomCall(_Call, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input: str


class _Output(_Item, frozen=True, kw_only=True, forbid_unknown_fields=True):
    call_id: Id
    output: str | list[Any]
    name: str | None = None
    namespace: str | None = None


class _Action(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str = "exec"
    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class _ShellCall(_Item, frozen=True, kw_only=True, forbid_unknown_fields=True):
    call_id: Id | None = None
    action: _Action


class _ShellOutput(_Item, frozen=True, kw_only=True, forbid_unknown_fields=True):
    call_id: Id | None = None
    output: str


class _SearchCall(_Item, frozen=True, kw_only=True, forbid_unknown_fields=True):
    call_id: Id | None = None
    arguments: Any = None
    execution: str | None = None


class _SearchOutput(_Item, frozen=True, kw_only=True, forbid_unknown_fields=True):
    call_id: Id | None = None
    tools: list[Any]
    execution: str | None = None


class ItemCall(NamedTuple):
    """A call as a function of a chat."""

    name: str
    namespace: str
    arguments: str


def call_in_chat(item: dict[str, Any]) -> ItemCall:
    """What a call's item is in a chat."""
    kind = item["type"]
    if kind == "local_shell_call":
        given = {name: value for name, value in item["action"].items() if value and name != "type"}
        return ItemCall(LOCAL_SHELL, "", msgspec.json.encode(given).decode())
    if kind == "tool_search_call":
        return ItemCall(TOOL_SEARCH, "", msgspec.json.encode(item["arguments"]).decode())
    arguments = arguments_of(item["input"]) if kind == "custom_tool_call" else item["arguments"]
    return ItemCall(item["name"], item.get("namespace", ""), arguments)


def _identified(found: _FunctionCall | _CustomCall) -> dict[str, Any]:
    space = {"namespace": found.namespace} if found.namespace else {}
    return {"call_id": found.call_id, "name": found.name, **space}


def function_call(value: dict[str, Any], where: str) -> dict[str, Any]:
    """An item of this type, as it is stored. Raises InvalidRequest, as all of these do."""
    call = typed_at(value, _FunctionCall, where)
    return {**_identified(call), "arguments": call.arguments}


def custom_tool_call(value: dict[str, Any], where: str) -> dict[str, Any]:
    """An item of this type."""
    call = typed_at(value, _CustomCall, where)
    return {**_identified(call), "input": call.input}


def output(value: dict[str, Any], where: str) -> tuple[str, str | list[Any]]:
    """The call's id and the output of a function or custom tool; parts are not checked."""
    found = typed_at(value, _Output, where)
    return found.call_id, found.output


def local_shell_call(value: dict[str, Any], where: str) -> dict[str, Any]:
    """An item of this type."""
    call = typed_at(value, _ShellCall, where)
    if call.action.type != "exec":
        raise refusals.wrong_value(f"{where}.action.type", "expected 'exec'", call.action.type)
    return {"call_id": _call_id(call, where), "action": shell_action(msgspec.to_builtins(call.action))}


def shell_action(arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - a model's JSON
    """The action of a call, from what a model wrote as its arguments."""
    given = arguments if isinstance(arguments, dict) else {"command": arguments}
    command = given.get("command")
    if isinstance(command, str):
        command = ["bash", "-lc", command]
    if not isinstance(command, Sequence):
        command = []
    action: dict[str, Any] = {"type": "exec", "command": [str(word) for word in command], "env": {}}
    if isinstance(given.get("env"), dict):
        action["env"] = {str(name): str(text) for name, text in given["env"].items()}
    for name, kind in (("timeout_ms", int), ("user", str), ("working_directory", str)):
        if isinstance(given.get(name), kind):
            action[name] = given[name]
    return action


def local_shell_call_output(value: dict[str, Any], where: str) -> dict[str, Any]:
    """An item of this type; OpenAI's has the call's id as its own."""
    found = typed_at(value, _ShellOutput, where)
    return {"call_id": _call_id(found, where), "output": found.output}


def tool_search_call(value: dict[str, Any], where: str) -> dict[str, Any]:
    """An item of this type."""
    found = typed_at(value, _SearchCall, where)
    return {"call_id": _call_id(found, where), "arguments": found.arguments or {}, "execution": "client"}


def tool_search_output(value: dict[str, Any], where: str) -> dict[str, Any]:
    """An item of this type, with the tools that were found."""
    found = typed_at(value, _SearchOutput, where)
    return {"call_id": _call_id(found, where), "tools": found.tools, "execution": "client"}


def _call_id(item: _ShellCall | _ShellOutput | _SearchCall | _SearchOutput, where: str) -> str:
    if (found := item.call_id or item.id) is None:
        raise refusals.missing(f"{where}.call_id")
    return found


def search_result(tools: Sequence[Any]) -> str:
    """The output of a tool search for the model: the names of what it may call from now on."""
    names = [str(tool.get("name")) for tool in tools if isinstance(tool, dict) and tool.get("name")]
    return msgspec.json.encode({"tools": names}).decode()

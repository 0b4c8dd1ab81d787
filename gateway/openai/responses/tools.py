"""Tools and tool_choice of a response → those of a chat, and the way back for calls.

A chat has functions and custom tools. Those of a namespace are offered by their names alone where no other
tool has the same; `local_shell` and a tool search of the client's are functions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from backend.identifiers import KEY, quoted
from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.parse import typed_at

CHOICES = ("none", "auto", "required")
CallKind = Literal["function_call", "custom_tool_call", "local_shell_call", "tool_search_call"]
MAX_CHAT_NAME_CHARS = 64
LOCAL_SHELL = "local_shell"
TOOL_SEARCH = "tool_search"
_SHELL_FUNCTION = {
    "name": LOCAL_SHELL,
    "description": "Runs a command on the user's machine and returns its output.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": {
                "type": "array",
                "items": {"type": "string"},
                "description": 'The program and its arguments, such as ["bash", "-lc", "ls"].',
            },
            "working_directory": {"type": "string", "description": "Where to run it."},
            "timeout_ms": {"type": "integer", "description": "When to stop it, in milliseconds."},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class _Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"is_async": "async"}):
    """What all tools of the client's have in common."""

    type: str
    name: str
    description: str | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    is_async: bool | None = None


class _Function(_Tool, frozen=True, forbid_unknown_fields=True):
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None  # accepted: it does not change the call


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    syntax: str | None = None
    definition: str | None = None


class _Custom(_Tool, frozen=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None


class _Namespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    name: str
    tools: list[Any]
    description: str | None = None


class _ToolSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    execution: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _LocalShell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[Any] | None = None


class Offered(NamedTuple):
    """A tool as the client named it."""

    kind: CallKind
    name: str
    namespace: str = ""


class OfferedTools:
    """The tools of one response, under the names that its chat has for them."""

    def __init__(self, *, drops_hosted: bool = False) -> None:
        """`drops_hosted`: leave out the tools that OpenAI runs; otherwise they are refused."""
        self.chat: list[dict[str, Any]] = []  # for the chat
        self.shown: list[Any] = []  # `tools` of the request, for the response
        self.ignored: set[str] = set()  # what the answer's header names
        self._drops_hosted = drops_hosted
        self._is_given = False  # by `tools`, not by an item
        self._dropped: set[str] = set()  # their types
        self._by_chat_name: dict[str, Offered] = {}
        self._chat_names: dict[tuple[str, str], str] = {}  # by namespace and name

    def add(self, tools: Sequence[Any], where: str = "tools") -> None:
        """Offer the tools of this field. Raises InvalidRequest naming the tool and its field."""
        kept = [
            (tool, f"{where}[{index}]")
            for index, tool in enumerate(tools)
            if not self._drops(tool, f"{where}[{index}]")
        ]
        self._is_given = where == "tools"
        for tool, place in sorted(kept, key=lambda each: _kind(each[0]) == "namespace"):
            self._add(tool, place)
        if self._is_given:
            self.shown += [_shown(tool) for tool, _ in kept]

    def chat_name(self, name: str, namespace: str = "") -> str:
        """What the chat calls a tool; one that is not offered keeps its name."""
        return self._chat_names.get((namespace, name)) or name

    def offered(self, chat_name: str) -> Offered:
        """The tool that a call in the chat is for; a function of the client's where none is known."""
        return self._by_chat_name.get(chat_name) or Offered("function_call", chat_name)

    def choice(self, given: str | dict[str, Any]) -> str | dict[str, Any]:
        """The `tool_choice` of the chat. Raises InvalidRequest."""
        if isinstance(given, str):
            if given not in CHOICES:
                expected = f"expected one of {', '.join(CHOICES)}, or an object"
                raise refusals.wrong_value("tool_choice", expected, given)
            return given
        choice = typed_at(given, _Choice, "tool_choice") if "type" in given else _typeless()
        if choice.type != "allowed_tools":
            if choice.type in self._dropped:
                self.ignored.add("tool_choice")
                return "auto"
            return self._named(choice, "tool_choice")
        allowed = [
            (typed_at(tool, _Choice, f"tool_choice.tools[{index}]"), f"tool_choice.tools[{index}]")
            for index, tool in enumerate(choice.tools or ())
        ]
        tools = [self._named(tool, place) for tool, place in allowed if tool.type not in self._dropped]
        if not tools and allowed:
            return "none"
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode or "auto", "tools": tools}}

    def _drops(self, tool: object, where: str) -> bool:
        kind = _kind(tool)
        if not isinstance(kind, str) or kind in ("function", "custom", "namespace", LOCAL_SHELL):
            return False
        if kind == TOOL_SEARCH and isinstance(tool, dict) and tool.get("execution") == "client":
            return False
        if not self._drops_hosted:
            raise _hosted(kind, where)
        self._dropped.add(kind)
        self.ignored.add(f"tools.{refusals.shown_name(kind)}")
        return True

    def _add(self, tool: Any, where: str) -> None:  # noqa: ANN401 - any JSON value
        kind = _kind(tool)
        if kind == "namespace":
            self._add_namespace(typed_at(tool, _Namespace, where), where)
        elif kind == LOCAL_SHELL:
            typed_at(tool, _LocalShell, where)
            self._offer(Offered("local_shell_call", LOCAL_SHELL), "function", _SHELL_FUNCTION)
        elif kind == TOOL_SEARCH:
            search = typed_at(tool, _ToolSearch, where)
            function: dict[str, Any] = {"name": TOOL_SEARCH, "description": search.description or ""}
            if search.parameters is not None:
                function["parameters"] = search.parameters
            self._offer(Offered("tool_search_call", TOOL_SEARCH), "function", function)
        else:
            self._add_own(tool, where)

    def _add_namespace(self, namespace: _Namespace, where: str) -> None:
        for index, tool in enumerate(namespace.tools):
            place = f"{where}.tools[{index}]"
            kind = _kind(tool)
            if isinstance(kind, str) and kind not in ("function", "custom"):
                raise refusals.wrong_value(f"{place}.type", "expected 'function' or 'custom'", kind)
            self._add_own(tool, place, namespace)

    def _add_own(self, tool: object, where: str, namespace: _Namespace | None = None) -> None:
        """A function or a custom tool."""
        space = "" if namespace is None else namespace.name
        if _kind(tool) == "custom":
            custom = typed_at(tool, _Custom, where)
            self._check(custom, where)
            described = _described(custom, namespace)
            if custom.format is not None:
                described["format"] = _chat_format(custom.format, f"{where}.format")
            self._offer(Offered("custom_tool_call", custom.name, space), "custom", described)
            return
        found = typed_at(tool, _Function, where)
        self._check(found, where)
        function = _described(found, namespace)
        for name in ("parameters", "strict"):
            if (value := getattr(found, name)) is not None:
                function[name] = value
        self._offer(Offered("function_call", found.name, space), "function", function)

    def _check(self, tool: _Tool, where: str) -> None:
        if tool.defer_loading:
            self.ignored.add("tools.defer_loading")
        if tool.allowed_callers not in (None, [], ["direct"]) and "direct" not in (
            tool.allowed_callers or ()
        ):
            place = f"{where}.allowed_callers"
            raise refusals.unsupported(place, f"'{place}' needs 'direct': programs do not run here")

    def _offer(self, tool: Offered, kind: str, described: dict[str, Any]) -> None:
        """Add one to the chat; those of items may come again, which is an error in `tools`."""
        key = (tool.namespace, tool.name)
        if key in self._chat_names and not self._is_given:
            return
        name = tool.name
        if tool.namespace and name in self._by_chat_name:
            name = _joined(tool)
        self._chat_names[key] = name
        self._by_chat_name[name] = tool
        self.chat.append({"type": kind, kind: {**described, "name": name}})

    def _named(self, choice: _Choice, where: str) -> dict[str, Any]:
        names = {LOCAL_SHELL: LOCAL_SHELL, TOOL_SEARCH: TOOL_SEARCH}
        if choice.type not in ("function", "custom", *names):
            raise _hosted(choice.type, where)
        name = names.get(choice.type, choice.name)
        if name is None:
            raise refusals.missing(f"{where}.name")
        kind = "custom" if choice.type == "custom" else "function"
        return {"type": kind, kind: {"name": self.chat_name(name, choice.namespace or "")}}


def _kind(tool: object) -> Any:  # noqa: ANN401 - any JSON value
    return tool.get("type") if isinstance(tool, dict) else None


def _typeless() -> _Choice:
    raise refusals.missing("tool_choice.type")


def _described(tool: _Tool, namespace: _Namespace | None) -> dict[str, Any]:
    """Name and description, which begins with that of the namespace."""
    texts = ["" if namespace is None else namespace.description or "", tool.description or ""]
    text = "\n".join(each for each in texts if each)
    return {"name": tool.name, **({"description": text} if text else {})}


def _chat_format(value: dict[str, Any], where: str) -> dict[str, Any]:
    given = typed_at(value, _Format, where)
    if given.type != "grammar":
        if given.type != "text":
            raise refusals.wrong_value(f"{where}.type", "expected 'text' or 'grammar'", given.type)
        return {"type": "text"}
    for name in ("syntax", "definition"):
        if getattr(given, name) is None:
            raise refusals.missing(f"{where}.{name}")
    return {"type": "grammar", "grammar": {"syntax": given.syntax, "definition": given.definition}}


def _joined(tool: Offered) -> str:
    """The name of a tool of a namespace when another has its name already."""
    joined = _NOT_IN_NAMES.sub("_", f"{tool.namespace.removesuffix('__')}__{tool.name}")
    if len(joined) <= MAX_CHAT_NAME_CHARS:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()[:8]
    return f"{joined[: MAX_CHAT_NAME_CHARS - 9]}_{digest}"


def _shown(tool: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A tool as the response repeats it, with the defaults of what was not set."""
    return {"strict": None, "parameters": None, **tool} if _kind(tool) == "function" else tool


def _hosted(kind: object, where: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{where}.type' must be function, custom, namespace or {LOCAL_SHELL}: {quoted(kind, KEY, 'it')} is "
        "a tool that OpenAI hosts or defines, which is not supported here. Leave it out; the "
        "policies can say 'requests: {hosted_tools: drop}'.",
        param=f"{where}.type",
        code="unsupported_parameter",
    )

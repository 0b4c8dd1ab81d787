"""`tools`, `tool_choice` and `parallel_tool_calls` of a chat → the functions that may be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backend.identifiers import FUNCTION_NAME, quoted
from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.custom_tools import InputGrammar, choice_of_functions, read_custom
from gateway.requests.parse import json_text, typed_at
from gateway.requests.strict_schema import strict_fault
from gateway.requests.tool_schema import check_parameters
from gateway.requests.types import ChatRequest

MAX_TOOLS = 128
MAX_CHARS = 256 * 1024
"""Length of all tools together, as JSON: bounds the time that reading them takes on the event loop."""

NAMES_SHOWN = 16
CHOICES = ("none", "auto", "required")
_SCHEMAS = {"function": "function.parameters", "custom": "custom.format"}
"""What the input of a tool of each type must match."""
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=rf"^{FUNCTION_NAME.pattern}\Z")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    function: _Function


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _NamedChoice(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    function: _Named


class _AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    mode: str
    tools: list[dict[str, Any]]


class _AllowedChoice(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    allowed_tools: _AllowedTools


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The functions that an answer may call; at least one."""

    definitions: Sequence[Mapping[str, Any]]  # for the chat template
    strict: frozenset[str] = frozenset()  # names of functions with `strict`
    is_required: bool = False  # at least one call, and nothing else
    max_calls: int | None = None
    param: str = "tools"  # the field to name in errors
    places: Mapping[str, str] = field(
        default_factory=dict
    )  # path of each schema in the request, by function name
    grammars: Mapping[str, InputGrammar] = field(default_factory=dict)  # of custom tools' inputs, by name

    @property
    def names(self) -> list[str]:
        """Function names in the order of the request."""
        return [definition["function"]["name"] for definition in self.definitions]

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameter schemas by function name."""
        return {each["function"]["name"]: each["function"]["parameters"] for each in self.definitions}


def read_definitions(tools: Sequence[object]) -> Sequence[Mapping[str, Any]]:
    """`tools` as chat templates read them. Raises InvalidRequest naming the field."""
    return _read_definitions(tools).definitions


def read_tools(request: ChatRequest) -> ToolChoice | None:
    """None when no tool is offered or may be called. Raises InvalidRequest naming the field."""
    choice = request.tool_choice
    if isinstance(choice, str) and choice not in CHOICES:
        raise refusals.wrong_value(
            "tool_choice", f"expected one of {', '.join(CHOICES)}, or an object", choice
        )
    if request.tools is None:
        if choice not in (None, "none", "auto"):
            raise refusals.wrong_value("tool_choice", "it needs 'tools' to choose from")
        return None
    found = _read_definitions(request.tools)
    if isinstance(choice, dict):
        found = _restrict(choice_of_functions(choice), found)
    if choice == "none":
        return None
    is_required = found.is_required or choice == "required"
    return replace(
        found,
        is_required=is_required,
        max_calls=found.max_calls or (1 if request.parallel_tool_calls is False else None),
        param="tool_choice" if is_required else "tools",
    )


def _read_definitions(tools: Sequence[object]) -> ToolChoice:
    if not 1 <= len(tools) <= MAX_TOOLS:
        raise refusals.wrong_value(
            "tools", f"expected 1 to {MAX_TOOLS} tools, got {len(tools)}; leave it out for none"
        )
    json_text(tools, "tools", MAX_CHARS)
    definitions: dict[str, dict[str, Any]] = {}
    strict = set()
    places = {}
    grammars = {}
    for index, value in enumerate(tools):
        where = f"tools[{index}]"
        kind = _kind(value, where)
        if kind == "custom":
            custom = read_custom(value, where)
            function = _Function(**custom.function)
            if custom.grammar is not None:
                grammars[function.name] = custom.grammar
        else:
            function = _read_function(value, where)
        if function.name in definitions:
            raise refusals.wrong_value(f"{where}.{kind}.name", f"there are two tools {function.name!r}")
        plain: dict[str, Any] = {"name": function.name}
        if function.description is not None:
            plain["description"] = function.description
        plain["parameters"] = function.parameters or _NO_PARAMETERS
        definitions[function.name] = {"type": "function", "function": plain}
        places[function.name] = f"{where}.{_SCHEMAS[kind]}"
        if function.strict:
            _check_strict(function, places[function.name])
            strict.add(function.name)
    return ToolChoice(list(definitions.values()), frozenset(strict), places=places, grammars=grammars)


def _check_strict(function: _Function, where: str) -> None:
    fault = strict_fault(function.parameters) if function.parameters else None
    if fault is not None:
        raise InvalidRequest(
            f"Invalid schema for function {function.name!r}: {fault}",
            param=where,
            code="invalid_function_parameters",
        )


def _kind(value: object, where: str) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in _SCHEMAS:
        raise InvalidRequest(
            f"'{where}.type' must be 'function' or 'custom'{refusals.got(kind)}: tools of other types are "
            "not supported.",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    return kind if isinstance(kind, str) else "function"


def _read_function(value: object, where: str) -> _Function:
    function: _Function = typed_at(value, _Tool, where).function
    if function.parameters is not None:
        check_parameters(function.parameters, f"{where}.function.parameters")
    return function


def _restrict(choice: dict[str, Any], offered: ToolChoice) -> ToolChoice:
    """The offered functions that an object in `tool_choice` allows."""
    kind = choice.get("type")
    if kind == "function":
        name = typed_at(choice, _NamedChoice, "tool_choice").function.name
        _check_offered(name, offered, "tool_choice.function.name")
        return replace(_only({name}, offered), is_required=True, max_calls=1)
    if kind != "allowed_tools":
        expected = "expected 'function', 'custom' or 'allowed_tools'"
        raise refusals.wrong_value("tool_choice.type", expected, kind)
    allowed = typed_at(choice, _AllowedChoice, "tool_choice").allowed_tools
    if allowed.mode not in CHOICES[1:]:
        raise refusals.wrong_value(
            "tool_choice.allowed_tools.mode", "expected 'auto' or 'required'", allowed.mode
        )
    place = "tool_choice.allowed_tools.tools"
    if not 1 <= len(allowed.tools) <= MAX_TOOLS:
        raise refusals.wrong_value(place, f"expected 1 to {MAX_TOOLS} tools, got {len(allowed.tools)}")
    names = set()
    for index, value in enumerate(allowed.tools):
        name = typed_at(value, _NamedChoice, f"{place}[{index}]").function.name
        _check_offered(name, offered, f"{place}[{index}].function.name")
        names.add(name)
    return replace(_only(names, offered), is_required=allowed.mode == "required")


def _only(names: set[str], offered: ToolChoice) -> ToolChoice:
    left = [each for each in offered.definitions if each["function"]["name"] in names]
    grammars = {name: grammar for name, grammar in offered.grammars.items() if name in names}
    return replace(offered, definitions=left, strict=offered.strict & names, grammars=grammars)


def _check_offered(name: str, offered: ToolChoice, where: str) -> None:
    if name in offered.names:
        return
    shown = quoted(name, FUNCTION_NAME, "the name")
    known = ", ".join(offered.names[:NAMES_SHOWN]) + (", …" if len(offered.names) > NAMES_SHOWN else "")
    raise refusals.wrong_value(where, f"{shown} is not a function in 'tools'; expected one of {known}")

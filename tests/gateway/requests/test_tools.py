"""Which functions a request offers, and the field that an error names."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import msgspec
import openai
import pytest
from pydantic import BaseModel, Field

from gateway.errors import InvalidRequest
from gateway.requests.tools import MAX_CHARS, ToolChoice, read_tools
from gateway.requests.types import ChatRequest

NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}

CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def tool(name: str = "add", **function: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"type": "function", "function": {"name": name, **function}}


def allowing(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def read(**fields: Any) -> ToolChoice | None:  # noqa: ANN401
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return read_tools(msgspec.convert(body, ChatRequest))


def chosen(**fields: Any) -> ToolChoice:  # noqa: ANN401
    found = read(tools=[tool("add"), tool("look_up"), tool("clock")], **fields)
    assert found is not None
    return found


def test_definitions_for_the_template() -> None:
    schema = CLOSED | {"properties": {"a": {"type": ["integer", "null"]}}}
    tools = [tool(description="Adds.", parameters=schema, strict=True), tool("b", parameters=None)]
    found = read(tools=tools)
    assert found is not None
    assert found.definitions == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": schema}},
        {"type": "function", "function": {"name": "b", "parameters": NO_PARAMETERS}},
    ]
    assert found.strict == frozenset(["add"])
    assert (found.names, found.is_required) == (["add", "b"], False)


@pytest.mark.parametrize("left_out", [{}, {"parameters": None}, {"parameters": {}}])
@pytest.mark.parametrize("strict", [None, False, True])
def test_without_parameters_there_are_no_arguments(left_out: dict[str, Any], strict: bool | None) -> None:
    found = read(tools=[tool("clock", strict=strict, **left_out)])
    assert found is not None and found.parameters == {"clock": NO_PARAMETERS}
    open_schema = {"type": "object"}
    found = read(tools=[tool("look_up", parameters=open_schema)])
    assert found is not None and found.parameters == {"look_up": open_schema}


def test_choices() -> None:
    assert chosen().max_calls is None
    assert chosen(tool_choice="auto", parallel_tool_calls=True) == chosen()
    assert chosen(parallel_tool_calls=False).max_calls == 1
    assert chosen(tool_choice="required").is_required
    named = chosen(tool_choice={"type": "function", "function": {"name": "look_up"}})
    assert (named.names, named.is_required, named.max_calls) == (["look_up"], True, 1)
    found = chosen(tool_choice=allowing("auto", tool("clock"), tool("add")))
    assert (found.names, found.is_required, found.max_calls) == (["add", "clock"], False, None)
    assert chosen(tool_choice=allowing("required", tool("add"))).is_required
    strict = [tool("add", strict=True), tool("clock")]
    for name, left in (("add", {"add"}), ("clock", set())):
        narrowed = read(tools=strict, tool_choice=allowing("auto", tool(name)))
        assert narrowed is not None and narrowed.strict == left


def test_tool_choice_none_hides_tools() -> None:
    assert read(tools=[tool()], tool_choice="none") is None
    for harmless in ({}, {"tool_choice": "none"}, {"tool_choice": "auto"}, {"parallel_tool_calls": False}):
        assert read(**harmless) is None


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"type": "function", "function": {"name": "clocks"}}, "tool_choice.function.name"),
        (
            allowing("auto", tool("add"), tool("clocks")),
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
    ],
)
def test_an_unknown_function_is_refused_with_the_known_ones(wrong: Any, place: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidRequest) as refused:
        chosen(tool_choice=wrong)
    assert refused.value.message == (
        f"Invalid value for '{place}': 'clocks' is not a function in 'tools'; "
        "expected one of add, look_up, clock."
    )
    many = [tool(f"f{i}") for i in range(128)]
    with pytest.raises(InvalidRequest) as refused:
        read(tools=many, tool_choice={"type": "function", "function": {"name": "x" * 100}})
    assert "f15, …" in refused.value.message and len(refused.value.message) < 200


def test_text_in_the_place_of_a_name_is_not_quoted() -> None:
    text = "my question is"
    for fields in (
        {"tool_choice": {"type": "function", "function": {"name": text}}},
        {"tool_choice": text},
        {"tools": [tool(text)]},
        {"tools": [tool() | {"type": text}]},
        {"tools": [tool(parameters={"properties": {"a": {}, text: {"type": "int"}}})]},
        {"tools": [tool(parameters=CLOSED | {"properties": {text: {}}}, strict=True)]},
    ):
        with pytest.raises(InvalidRequest) as refused:
            read(**{"tools": [tool()], **fields})
        assert "question" not in refused.value.message + (refused.value.param or "")


def test_a_wrong_word_is_quoted() -> None:
    with pytest.raises(InvalidRequest, match=r"'tool_choice' \(got 'always'\)"):
        read(tools=[tool()], tool_choice="always")
    with pytest.raises(InvalidRequest, match=r"must be 'function' or 'custom' \(got 'mcp'\)"):
        read(tools=[tool() | {"type": "mcp"}])
    with pytest.raises(InvalidRequest, match="there are two tools 'add'"):
        read(tools=[tool(), tool()])


NESTED: dict[str, Any] = {"type": "object"}
for _ in range(40):
    NESTED = {"type": "object", "properties": {"a": NESTED}}

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"tools": []}, "tools"),
    ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools"),
    ({"tools": ["add"]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "custom", "custom": {"name": "x y"}}]}, "tools[0].custom.name"),
    ({"tools": [{**tool(), "x": 1}]}, "tools[0].x"),
    ({"tools": [tool(), tool("b", paramters={})]}, "tools[1].function.paramters"),
    ({"tools": [tool("not valid")]}, "tools[0].function.name"),
    ({"tools": [tool("x" * 65)]}, "tools[0].function.name"),
    ({"tools": [tool("x\n")]}, "tools[0].function.name"),
    ({"tools": [tool(), tool()]}, "tools[1].function.name"),
    ({"tools": [tool(description=1)]}, "tools[0].function.description"),
    ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
    ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
    ({"tools": [tool(parameters={"properties": []})]}, "tools[0].function.parameters.properties"),
    ({"tools": [tool(parameters={"required": "a"})]}, "tools[0].function.parameters.required"),
    (
        {"tools": [tool(parameters={"properties": {"a": {"type": "int"}}})]},
        "tools[0].function.parameters.properties.a.type",
    ),
    (
        {"tools": [tool(parameters={"properties": {"a": {}, "b c": {"type": "int"}}})]},
        "tools[0].function.parameters.properties[1].type",
    ),
    (
        {"tools": [tool(parameters={"properties": {"a": {"anyOf": [{}, 5]}}})]},
        "tools[0].function.parameters.properties.a.anyOf[1]",
    ),
    (
        {"tools": [tool(parameters={"properties": {"a": {"items": {"enum": 1}}}})]},
        "tools[0].function.parameters.properties.a.items.enum",
    ),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
    ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    (
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "b"}}},
        "tool_choice.function.name",
    ),
    (
        {"tools": [tool()], "tool_choice": allowing("auto")},
        "tool_choice.allowed_tools.tools",
    ),
    (
        {"tools": [tool()], "tool_choice": allowing("auto", *[tool()] * 129)},
        "tool_choice.allowed_tools.tools",
    ),
    (
        {"tools": [tool()], "tool_choice": allowing("x", tool())},
        "tool_choice.allowed_tools.mode",
    ),
]  # fmt: skip
FAULTS += [
    (
        {"tools": [tool(parameters={"properties": {"a": {keyword: 5}}})]},
        f"tools[0].function.parameters.properties.a.{keyword}",
    )
    for keyword in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
]


@pytest.mark.parametrize(("fields", "param"), FAULTS)
def test_errors_name_their_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**fields)
    assert refused.value.param == param
    assert f"'{param}'" in refused.value.message


def test_deep_schemas_are_refused_with_a_short_place() -> None:
    with pytest.raises(InvalidRequest, match="deep") as refused:
        read(tools=[tool(parameters=NESTED)])
    assert len(refused.value.param or "") < 300


@pytest.mark.parametrize(
    "tools",
    [
        [tool(parameters={"anyOf": [{}] * 900_000})],
        [tool(f"f{i}", parameters={"properties": {f"p{j}": {} for j in range(300)}}) for i in range(100)],
        [tool(description="x" * MAX_CHARS)],
        [tool(), ["x" * MAX_CHARS]],
    ],
    ids=["wide", "together", "text", "no tool"],
)
def test_large_tools_are_refused_before_they_are_checked(tools: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"at most {MAX_CHARS}") as refused:
        read(tools=tools)
    assert (refused.value.param, refused.value.code) == ("tools", "invalid_value")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (CLOSED | {"type": None}, 'type: "object"'),
        (CLOSED | {"anyOf": [CLOSED]}, "'anyOf' is not permitted at the root"),
        (CLOSED | {"additionalProperties": True}, "context=(), 'additionalProperties' is required"),
        (CLOSED | {"required": []}, "Missing 'a'"),
        (CLOSED | {"properties": {"a": {}, "b c": {}}}, "Missing properties[1]"),
        (
            CLOSED | {"properties": {"a": {}, "b c": {"type": "object"}}, "required": ["a", "b c"]},
            "context=('properties[1]',)",
        ),
        (
            CLOSED | {"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "object"}]}}},
            "context=('properties', 'a', 'anyOf', '1'), 'additionalProperties'",
        ),
    ],
)
def test_strict_functions_follow_the_documented_rules(schema: dict[str, Any], words: str) -> None:
    schema = {key: value for key, value in schema.items() if value is not None}
    with pytest.raises(InvalidRequest) as refused:
        read(tools=[tool("look_up"), tool(parameters=schema, strict=True)])
    assert refused.value.message.startswith("Invalid schema for function 'add': ")
    assert words in refused.value.message
    assert (refused.value.param, refused.value.code) == (
        "tools[1].function.parameters",
        "invalid_function_parameters",
    )
    assert read(tools=[tool(parameters=schema, strict=False)]) is not None


class Nothing(BaseModel):
    """No parameters."""


class Unit(Enum):
    METRE = "m"
    FOOT = "ft"


class Leaf(BaseModel):
    name: str = Field(description="Its name.")
    inner: list[Leaf]
    beside: Leaf | None = None


class Length(BaseModel):
    """Nested, optional and list fields."""

    unit: Unit = Field(description="Of the number.")
    number: float | int
    tag: Literal["a", "b"] | None = None
    leaves: list[Leaf] = Field(max_length=3)
    leaf: Leaf = Field(description="Another one.")


@pytest.mark.parametrize("model", [Nothing, Leaf, Length])
def test_the_official_clients_schemas_of_pydantic_models_are_strict(model: type[BaseModel]) -> None:
    found = read(tools=[openai.pydantic_function_tool(model)])
    assert found is not None and found.strict == {model.__name__}

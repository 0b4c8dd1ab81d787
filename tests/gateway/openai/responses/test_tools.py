"""The tools of a response under the names of its chat."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.openai.responses.request import read_request
from gateway.openai.responses.tools import Offered, OfferedTools

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
PATCH = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
}


def space(name: str, *tools: dict[str, Any], description: str = "") -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": description, "tools": list(tools)}


def offered(*tools: dict[str, Any], drops_hosted: bool = False) -> OfferedTools:
    found = OfferedTools(drops_hosted=drops_hosted)
    found.add(tools)
    return found


def names(tools: OfferedTools) -> list[str]:
    return [tool[tool["type"]]["name"] for tool in tools.chat]


def test_functions_of_a_namespace_are_offered_by_their_names() -> None:
    tools = offered(space("agents", ADD, PATCH, description="Sub-agents."))
    assert names(tools) == ["add", "patch"]
    assert tools.chat[0]["function"]["description"] == "Sub-agents."
    assert tools.offered("add") == Offered("function_call", "add", "agents")
    assert tools.offered("patch") == Offered("custom_tool_call", "patch", "agents")
    assert tools.offered("other") == Offered("function_call", "other")


def test_names_that_are_taken_get_that_of_their_namespace() -> None:
    tools = offered(space("a.b", ADD), space("c__", ADD), ADD, space("x" * 70, ADD), space("x" * 71, ADD))
    assert names(tools)[:3] == ["add", "a_b__add", "c__add"]
    assert len(set(names(tools))) == 5 and max(map(len, names(tools))) == 64
    assert tools.chat_name("add", "a.b") == "a_b__add" and tools.chat_name("add") == "add"
    assert tools.chat_name("gone", "a.b") == "gone"


def test_the_same_tool_of_a_later_item_is_offered_once() -> None:
    tools = offered(ADD)
    tools.add([ADD, space("s", PATCH)], "input[0].tools")
    tools.add([space("s", PATCH)], "input[2].tools")
    assert names(tools) == ["add", "patch"] and tools.shown == [{"strict": None, **ADD}]


def test_a_shell_and_a_search_of_the_client_are_functions() -> None:
    search = {"type": "tool_search", "execution": "client", "description": "Finds tools."}
    tools = offered({"type": "local_shell"}, search)
    assert names(tools) == ["local_shell", "tool_search"]
    assert tools.offered("local_shell").kind == "local_shell_call"
    assert tools.choice({"type": "local_shell"}) == {"type": "function", "function": {"name": "local_shell"}}


HOSTED = [
    {"type": "web_search", "external_web_access": True},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "tool_search"},
    {"type": "mcp", "server_label": "s"},
]


@pytest.mark.parametrize("tool", HOSTED)
def test_hosted_tools_are_refused_or_dropped_and_named(tool: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"'{tool['type']}'.*hosted_tools: drop") as refused:
        offered(ADD, tool)
    assert refused.value.param == "tools[1].type"
    tools = offered(ADD, tool, drops_hosted=True)
    assert names(tools) == ["add"] and tools.ignored == {f"tools.{tool['type']}"}
    assert [each["type"] for each in tools.shown] == ["function"]
    kind = tool["type"]
    assert tools.choice({"type": kind}) == "auto" and "tool_choice" in tools.ignored
    listed = [{"type": kind}, {"type": "function", "name": "add"}]
    choice: Any = tools.choice({"type": "allowed_tools", "mode": "auto", "tools": listed})
    assert choice["allowed_tools"]["tools"] == [{"type": "function", "function": {"name": "add"}}]


@pytest.mark.parametrize("kind", [{"a": 1}, ["function"], 1, True, None])
@pytest.mark.parametrize("drops_hosted", [False, True])
def test_a_type_that_is_no_text_is_refused(kind: object, *, drops_hosted: bool) -> None:
    for tool, place in (
        ({"type": kind}, "tools[0].type"),
        (space("n", {"type": kind}), "tools[0].tools[0].type"),
    ):
        with pytest.raises(InvalidRequest, match=re.escape(place)) as refused:
            offered(tool, drops_hosted=drops_hosted)
        assert (refused.value.param, refused.value.code) == (place, "invalid_type")


def test_an_odd_type_is_named_by_a_question_mark() -> None:
    assert offered({"type": "a b\r\nx: 1"}, drops_hosted=True).ignored == {"tools.?"}


def test_a_choice_from_dropped_tools_alone_is_none() -> None:
    chat = read_request(
        {"model": "m", "input": "x", "tools": HOSTED[:1], "tool_choice": "required"}, drops_hosted=True
    )
    assert chat.chat == {"model": "m"} and set(chat.ignored_fields) == {"tools.web_search", "tool_choice"}


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (space("n", {"type": "web_search"}), "tools[0].tools[0].type"),
        (space("n", {"type": "function"}), "tools[0].tools[0].name"),
        ({"type": "namespace", "name": "n"}, "tools[0].tools"),
        ({**PATCH, "format": {"type": "grammar", "syntax": "lark"}}, "tools[0].format.definition"),
        ({**PATCH, "format": {"type": "x"}}, "tools[0].format.type"),
        ({"type": "local_shell", "name": "x"}, "tools[0].name"),
    ],
)
def test_errors_name_the_field(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        offered(tool)
    assert refused.value.param == param


def test_deferred_tools_are_offered_at_once() -> None:
    tools = offered({**ADD, "defer_loading": True})
    assert names(tools) == ["add"] and tools.ignored == {"tools.defer_loading"}

"""The conversation of OpenAI's Codex CLI: requests of its shape, with other words, and what it reads.

A scripted model calls the tools that it is offered, one per turn, and then ends; the client answers each call
with an item of the right type, and sends everything again, as the CLI does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from aiohttp import web
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.e2e.conftest import StartServer
from tests.e2e.http_thread import HttpThread
from tests.e2e.server import Server

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATCH = 'open patch\nnew file: notes.txt\n+says "hi" \\ there\n+zwei ü\nclose patch\n'
GRAMMAR = """
start: "open patch" LF part+ "close patch" LF?
part: "new file: " /(.+)/ LF line+
line: ("+" | "-") /(.*)/ LF -> line
%import common.LF
"""
TEXT = {"type": "string"}


def function(name: str, *arguments: str, **more: object) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": dict.fromkeys(arguments, TEXT),
        "required": list(arguments[:1]),
        "additionalProperties": False,
    }
    described = {"description": f"Does {name}.", "strict": False, "parameters": parameters}
    return {"type": "function", "name": name, **described, **more}


PATCH_TOOL = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files. This is a free text tool: write no JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
AGENTS = {
    "type": "namespace",
    "name": "agents_v1",
    "description": "Tools of helpers.",
    "tools": [function("close_agent", "target"), function("spawn_agent", "message", "role")],
}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds more tools.",
    "parameters": function("x", "query", "limit")["parameters"],
}
WEB = {"type": "web_search", "external_web_access": True}
FOUND = {"type": "namespace", "name": "found", "description": "", "tools": [function("close_agent", "id")]}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("exec_command", {"cmd": "ls"}),
    ("apply_patch", {"input": PATCH}),
    ("close_agent", {"target": "a"}),
    ("tool_search", {"query": "more", "limit": "3"}),
    ("found__close_agent", {"id": "b"}),
    ("local_shell", {"command": ["pwd"]}),
]
"""What the model calls, in this order, of what it is offered."""


class Model(HttpThread):
    """A chat API without custom tools."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        super().__init__()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/chat/completions", self._chat)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        offered = {tool["function"]["name"] for tool in body.get("tools", ())}
        done = [call["function"]["name"] for m in body["messages"] for call in m.get("tool_calls", ())]
        left = [call for call in CALLS if call[0] in offered and call[0] not in done]
        deltas: list[dict[str, Any]] = [{"content": "All "}, {"content": "done."}]
        if left:
            name, arguments = left[0]
            text = json.dumps(arguments)
            first = {"index": 0, "id": f"call_{len(done)}", "type": "function"}
            deltas = [{"tool_calls": [first | {"function": {"name": name, "arguments": text[:9]}}]}]
            deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": text[9:]}}]})
        ends = "tool_calls" if left else "stop"
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": ends})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for choice in choices:
            await response.write(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.close()


@pytest.fixture(scope="module")
def gateway(
    start_module_server: StartServer, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    folder = tmp_path_factory.mktemp("policies")
    upstream = f'{{upstream: {{base_url: "{model.base_url}"}}}}'
    (folder / "p.yaml").write_text(f"models: {{codes: {upstream}}}\nrequests: {{hosted_tools: drop}}\n")
    return start_module_server("--policies", str(folder))


def turn(**fields: object) -> dict[str, Any]:
    """A request as the CLI makes them."""
    return {
        "model": "codes",
        "stream": True,
        "store": False,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto", "context": "all_turns"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a2-thread",
        "client_metadata": {"session_id": "01a2", "x-codex-turn-metadata": '{"turn_id":"1"}'},
        "text": {"verbosity": "low"},
        **fields,
    }


def message(role: str, text: str, number: int) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "id": f"msg_{number}", "role": role, "content": content}


def result(item: dict[str, Any]) -> dict[str, Any]:
    """What the CLI sends back for a call."""
    answered = {"call_id": item["call_id"]}
    if item["type"] == "tool_search_call":
        more = {"status": "completed", "execution": "client", "tools": [FOUND]}
        return {"type": "tool_search_output", **answered, **more}
    if item["type"] == "local_shell_call":
        return {"type": "local_shell_call_output", "id": item["call_id"], "output": "/home"}
    output: Any = "ok"
    if item["type"] == "custom_tool_call":
        output = [{"type": "input_text", "text": "Exit code 0"}, {"type": "input_text", "text": "wrote"}]
    return {"type": f"{item['type']}_output", **answered, "output": output}


def converse(gateway: Server, tools: list[Any], items: list[Any]) -> tuple[list[Any], httpx.Headers]:
    """All items at the end, and the headers of the last answer."""
    headers = httpx.Headers()
    with httpx.Client(base_url=gateway.base_url, headers=gateway.headers, timeout=30) as client:
        for _ in range(len(CALLS) + 2):
            fields: dict[str, Any] = {"input": items, **({"tools": tools} if tools else {})}
            answer = client.post("/responses", json=turn(**fields))
            assert answer.status_code == 200, answer.text
            headers = answer.headers
            datas = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            for data in datas:
                EVENT.validate_json(data)
            events = [json.loads(data) for data in datas]
            assert events[-1]["type"] == "response.completed"
            new = [each["item"] for each in events if each["type"] == "response.output_item.done"]
            assert new == events[-1]["response"]["output"]
            items = [*items, *new]
            calls = [item for item in new if item["type"].endswith("_call")]
            if not calls:
                return items, headers
            items += map(result, calls)
    raise AssertionError("it never ended")


@pytest.mark.parametrize("are_items", [False, True])
def test_a_conversation_with_every_kind_of_tool(gateway: Server, model: Model, are_items: bool) -> None:
    """Older versions send `tools`, newer ones an item with namespaces."""
    tools: list[Any] = [
        function("exec_command", "cmd"),
        PATCH_TOOL,
        AGENTS,
        SEARCH,
        WEB,
        {"type": "local_shell"},
    ]
    items = [message("developer", "word " * 3400, 1), message("user", "Write notes.", 2)]
    if are_items:
        own = {"type": "namespace", "name": "functions", "description": "", "tools": tools[:2]}
        rest = [own, *tools[2:]]
        items.insert(0, {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": rest})
    found, headers = converse(gateway, [] if are_items else tools, items)
    named = {"client_metadata", "tools.web_search"}
    assert named <= set(headers["x-penstock-ignored-fields"].split(", "))
    calls = [item for item in found if item["type"].endswith("_call")]
    space = {"namespace": "functions"} if are_items else {}
    shown = [{k: v for k, v in item.items() if k not in ("id", "status", "call_id")} for item in calls]
    assert shown == [
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": "ls"}', **space},
        {"type": "custom_tool_call", "name": "apply_patch", "input": PATCH, **space},
        {
            "type": "function_call",
            "namespace": "agents_v1",
            "name": "close_agent",
            "arguments": '{"target": "a"}',
        },
        {"type": "tool_search_call", "arguments": {"query": "more", "limit": "3"}, "execution": "client"},
        {"type": "function_call", "namespace": "found", "name": "close_agent", "arguments": '{"id": "b"}'},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["pwd"], "env": {}}},
    ]
    assert found[-1]["content"][0]["text"] == "All done."
    asked = model.seen[-1]
    assert {tool["type"] for tool in asked["tools"]} == {"function"} and "web_search" not in str(
        asked["tools"]
    )
    (patch,) = [tool["function"] for tool in asked["tools"] if tool["function"]["name"] == "apply_patch"]
    assert GRAMMAR.strip() in patch["description"] and patch["parameters"]["required"] == ["input"]
    written = [
        json.loads(c["function"]["arguments"]) for m in asked["messages"] for c in m.get("tool_calls", ())
    ]
    assert written == [arguments for _, arguments in CALLS]


def test_stored_responses_keep_calls_of_custom_tools(gateway: Server) -> None:
    with httpx.Client(base_url=gateway.base_url, headers=gateway.headers, timeout=30) as client:
        asked = {"model": "codes", "input": "Write.", "tools": [PATCH_TOOL], "stream": True}
        first = client.post("/responses", json=asked).text.splitlines()[-2]
        response = json.loads(first.removeprefix("data: "))["response"]
        stored = client.get(f"/responses/{response['id']}").json()
        assert stored == response and stored["output"][0]["type"] == "custom_tool_call"
        output = {"type": "custom_tool_call_output", "call_id": "call_0", "output": "ok"}
        again = asked | {"previous_response_id": response["id"], "input": [output]}
        assert '"All done."' in client.post("/responses", json=again).text


def test_hosted_tools_are_refused_by_name_without_the_policy(server: Server) -> None:
    with httpx.Client(base_url=server.base_url, headers=server.headers, timeout=30) as client:
        body = turn(model="remote", input="hi", tools=[WEB])
        error = client.post("/responses", json=body).json()["error"]
    assert error["param"] == "tools[0].type" and "'web_search'" in error["message"]

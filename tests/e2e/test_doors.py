"""What chats, responses and messages have in common: unknown fields, extensions, ignored names, counts."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.server import Server

POLICY = """
models:
  lenient: {engine: {checkpoint: "builtin:pico-small", unknown_fields: ignore, kv_cache_bytes: 33554432}}
routing:
  rules:
    - {name: agents, when: "request.model.startsWith('claude-')", model: lenient}
"""
DOORS: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 2},
    "/responses": {"input": "hi", "max_output_tokens": 2},
    "/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/responses/input_tokens": {"input": "hi"},
}
doors = pytest.mark.parametrize("door", DOORS)
EXTENSIONS = {
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "seed": 7,
    "skip_special_tokens": True,
    "use_beam_search": False,
    "length_penalty": 1.0,
}


@pytest.fixture(scope="module")
def lenient(start_module_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder = tmp_path_factory.mktemp("policies")
    (folder / "p.yaml").write_text(POLICY)
    return start_module_server("--policies", str(folder))


def ask(server: Server, door: str, model: str, **fields: object) -> httpx.Response:
    body = {"model": model, **DOORS[door], **fields}
    return httpx.post(server.base_url + door, json=body, headers=server.headers, timeout=60)


@doors
def test_unknown_fields_are_ignored_and_named_where_the_policy_says_so(lenient: Server, door: str) -> None:
    answer = ask(lenient, door, "lenient", colour="blue", flavour={"a": 1})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-penstock-ignored-fields"] == "colour, flavour"


ODD = (
    "",
    "a b\r\nx-evil: 1",
    "é中",
    "q" * 100_000,
    "a`b",
    "`",
    "x` - at `$.model",
    " - at `$.input[0]`",
    "a.b c",
)


@doors
def test_odd_names_are_one_question_mark_on_every_door(lenient: Server, door: str) -> None:
    answer = ask(lenient, door, "lenient", zzz=1, **dict.fromkeys(ODD, 2))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-penstock-ignored-fields"] == "?, zzz"
    assert "x-evil" not in answer.headers
    many = {f"x{number}": 1 for number in range(64)}
    assert ask(lenient, door, "lenient", **many).status_code == 200
    assert ask(lenient, door, "lenient", **many, y=1).status_code == 400


@doors
def test_extensions_are_honoured_on_every_door(lenient: Server, door: str) -> None:
    answer = ask(lenient, door, "lenient", **EXTENSIONS)
    assert answer.status_code == 200 and "x-penstock-ignored-fields" not in answer.headers, answer.text
    assert ask(lenient, door, "lenient", top_k="many").status_code == 400


def test_the_header_has_the_callers_own_names(lenient: Server) -> None:
    def named(door: str, **fields: object) -> str:
        answer = ask(lenient, door, "lenient", **fields)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-penstock-ignored-fields"]

    assert named("/messages", thinking={"type": "enabled", "budget_tokens": 1024}) == "thinking"
    assert named("/messages", output_config={"effort": "high"}) == "output_config.effort"
    assert named("/responses", reasoning={"effort": "high"}) == "reasoning.effort"
    assert named("/responses", text={"verbosity": "low"}) == "text.verbosity"
    assert named("/chat/completions", reasoning_effort="high", service_tier="flex") == (
        "reasoning_effort, service_tier"
    )
    nested = [{"role": "user", "content": "hi", "colour": "blue"}]
    for door in ("/messages", "/chat/completions"):
        assert named(door, messages=nested) == "messages.colour"
        assert named(door, messages=[{"role": "user", "content": "hi", "": 1, "a b": 2}]) == "messages.?"


@doors
def test_unknown_fields_are_refused_by_name_otherwise(server: Server, door: str) -> None:
    answer = ask(server, door, "pico-small", colour="blue")
    assert answer.status_code == 400 and "'colour'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("door", ["/messages/count_tokens", "/responses/input_tokens"])
def test_counts_accept_what_their_api_accepts(lenient: Server, door: str) -> None:
    fields: dict[str, Any] = {"stream": True, "temperature": 0.5, "top_p": 0.9, "service_tier": "auto"}
    if door.startswith("/messages"):
        fields |= {"max_tokens": 9, "stop_sequences": ["x"], "metadata": {"user_id": "u"}, "top_k": 3}
    else:
        fields |= {"max_output_tokens": 9, "store": True, "metadata": {"a": "b"}, "background": False}
    answer = ask(lenient, door, "lenient", **fields)
    assert answer.status_code == 200 and answer.json()["input_tokens"] > 0, answer.text
    if door.startswith("/responses"):
        answer = ask(lenient, door, "lenient", input=None, instructions="Be brief.")
        assert answer.status_code == 200, answer.text


def test_names_of_another_vendors_models_are_mapped_by_a_rule(lenient: Server) -> None:
    fields: Any = {"model": "claude-opus-5", "messages": [{"role": "user", "content": "What is 17 + 25?"}]}
    with anthropic.Anthropic(base_url=lenient.root_url, api_key="none", max_retries=0) as client:
        message = client.messages.create(max_tokens=9, **fields)
        counted = client.messages.count_tokens(**fields)
    assert message.model == "lenient" and counted.input_tokens == message.usage.input_tokens > 0

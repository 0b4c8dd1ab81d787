"""Anthropic's official client, with only its base_url changed, responses strictly validated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.e2e.conftest import MODEL
from tests.e2e.server import Server
from tests.e2e.upstream import Upstream

THINKER = "pico-large"
CALCULATOR: ToolParam = {
    "name": "calculator",
    "description": "Compute an expression.",
    "input_schema": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


def ask(text: str) -> list[MessageParam]:
    return [{"role": "user", "content": text}]


QUESTION = ask("What is 17 + 25?")


@pytest.fixture
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.root_url,
        api_key=server.api_key,
        max_retries=0,
        timeout=60,
        _strict_response_validation=True,
    ) as client:
        yield client


def test_an_answer(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(model=MODEL, max_tokens=32_000, messages=QUESTION, system="Be brief.")
    (block,) = message.content
    assert block.type == "text" and "42" in block.text
    assert (message.role, message.stop_reason, message.model) == ("assistant", "end_turn", MODEL)
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0
    assert message._request_id is not None and message._request_id.startswith("req_")


@pytest.mark.parametrize("model", [MODEL, THINKER, "remote"])
def test_a_stream_is_the_whole_answer(claude: anthropic.Anthropic, model: str) -> None:
    fields: Any = {
        "model": model,
        "max_tokens": 400,
        "messages": QUESTION,
        "extra_body": {"temperature": 0.0},
    }
    if model == THINKER:
        fields["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    whole = claude.messages.create(**fields)
    with claude.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    shown = {"type", "text", "thinking", "signature"}
    assert [block.model_dump(include=shown) for block in streamed.content] == [
        block.model_dump(include=shown) for block in whole.content
    ]
    assert streamed.stop_reason == whole.stop_reason == "end_turn"
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0
    kinds = [block.type for block in whole.content]
    assert kinds == (["thinking", "text"] if model == THINKER else ["text"])


def test_a_tool_loop(claude: anthropic.Anthropic) -> None:
    messages = ask("What is 417 + 256?")
    with claude.messages.stream(model=MODEL, max_tokens=200, messages=messages, tools=[CALCULATOR]) as stream:
        called = stream.get_final_message()
    assert called.stop_reason == "tool_use"
    (call,) = [block for block in called.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("calculator", {"expression": "417 + 256"})
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "673"}
    messages += [called.to_param(), {"role": "user", "content": [result]}]
    answer = claude.messages.create(model=MODEL, max_tokens=200, messages=messages, tools=[CALCULATOR])
    assert answer.stop_reason == "end_turn"
    assert "673" in "".join(block.text for block in answer.content if block.type == "text")


def test_stop_reasons(claude: anthropic.Anthropic) -> None:
    cut = claude.messages.create(model=MODEL, max_tokens=1, messages=QUESTION)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 1)
    stopped = claude.messages.create(model=MODEL, max_tokens=50, messages=QUESTION, stop_sequences=["2"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "2")
    assert [block.type for block in stopped.content] == ["text"]


def test_structured_output(claude: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    message = claude.messages.create(
        model=MODEL,
        max_tokens=60,
        messages=QUESTION,
        output_config={"format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}},
    )
    (block,) = message.content
    assert block.type == "text" and block.text.replace(" ", "").startswith('{"sum":')


def test_counted_tokens_are_those_of_the_answer(claude: anthropic.Anthropic) -> None:
    counted = claude.messages.count_tokens(
        model=MODEL, messages=QUESTION, tools=[CALCULATOR], system="Be brief."
    )
    message = claude.messages.create(
        model=MODEL, max_tokens=1, messages=QUESTION, tools=[CALCULATOR], system="Be brief."
    )
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_an_upstream_gets_a_chat(claude: anthropic.Anthropic, upstream: Upstream) -> None:
    message = claude.messages.create(
        model="remote", max_tokens=9, messages=ask("hello messages"), system=[{"type": "text", "text": "S"}]
    )
    assert [block.text for block in message.content if block.type == "text"] == ["echo: hello messages"]
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 3)
    assert upstream.seen[-1].body == {
        "model": "far-away",
        "max_completion_tokens": 9,
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "hello messages"}],
    }


def test_errors_are_anthropics(claude: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        claude.messages.create(model="nothing", max_tokens=9, messages=QUESTION)
    with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
        claude.messages.create(
            model=MODEL, max_tokens=9, messages=QUESTION, extra_body={"mcp_servers": [{"name": "x"}]}
        )
    with pytest.raises(anthropic.RateLimitError, match="scripted") as limited:
        claude.messages.create(model="remote", max_tokens=9, messages=ask("status 429"))
    assert limited.value.response.headers["retry-after"] == "7"
    with pytest.raises(anthropic.AuthenticationError) as caught:
        claude.with_options(api_key="wrong").messages.create(model=MODEL, max_tokens=9, messages=QUESTION)
    body: Any = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "authentication_error"
    assert body["request_id"] == caught.value.response.headers["request-id"]


def test_a_stream_that_is_cut_is_an_error(claude: anthropic.Anthropic) -> None:
    with (
        pytest.raises(anthropic.APIStatusError, match="upstream"),
        claude.messages.stream(model="remote", max_tokens=9, messages=ask("cut")) as stream,
    ):
        stream.get_final_message()


def test_either_header_carries_the_key(server: Server) -> None:
    body = {"model": MODEL, "max_tokens": 1, "messages": QUESTION}
    for headers in ({"x-api-key": server.api_key}, {"authorization": f"Bearer {server.api_key}"}):
        headers = {**headers, "anthropic-version": "2023-06-01"}
        answer = httpx.post(f"{server.base_url}/messages", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200 and answer.json()["type"] == "message"

"""OpenAI's Responses API with the official client, strictly validated."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam

from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.server import Server, wait_until
from tests.e2e.upstream import Upstream

THINKER = "pico-large"
QUESTION = "What is 17 + 25?"
CALCULATOR: FunctionToolParam = {
    "type": "function",
    "name": "calculator",
    "description": "Compute an expression.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture
def strict(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=server.base_url,
        api_key=server.api_key,
        max_retries=0,
        timeout=60,
        _strict_response_validation=True,
    ) as client:
        yield client


def test_an_answer_is_stored_until_it_is_deleted(strict: openai.OpenAI) -> None:
    response = strict.responses.create(model=MODEL, input=QUESTION, instructions="Be brief.")
    assert "42" in response.output_text and response.status == "completed"
    assert strict.responses.retrieve(response.id) == response
    (item,) = strict.responses.input_items.list(response.id)
    assert item.type == "message" and item.role == "user"
    strict.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        strict.responses.retrieve(response.id)


@pytest.mark.parametrize("model", [MODEL, THINKER, "remote"])
def test_a_stream_ends_with_the_whole_response(strict: openai.OpenAI, model: str) -> None:
    fields: Any = {"model": model, "input": QUESTION, "temperature": 0.0}
    if model == THINKER:
        fields["reasoning"] = {"effort": "high", "summary": "auto"}
    whole = strict.responses.create(**fields)
    with strict.responses.stream(**fields) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert streamed.output_text == whole.output_text != ""
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert ("reasoning" in [item.type for item in whole.output]) is (model == THINKER)
    assert streamed.usage is not None and whole.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert strict.responses.retrieve(streamed.id).output_text == streamed.output_text


def test_a_tool_loop_with_stored_responses(strict: openai.OpenAI) -> None:
    called = strict.responses.create(model=MODEL, input="What is 417 + 256?", tools=[CALCULATOR])
    (call,) = [item for item in called.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("calculator", {"expression": "417 + 256"})
    answer = strict.responses.create(
        model=MODEL,
        previous_response_id=called.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "673"}],
        tools=[CALCULATOR],
    )
    assert "673" in answer.output_text
    listed = [item.type for item in strict.responses.input_items.list(answer.id, order="asc")]
    assert listed == ["message", *[item.type for item in called.output], "function_call_output"]


def test_counted_tokens_are_those_of_the_response(strict: openai.OpenAI) -> None:
    first = strict.responses.create(model=MODEL, input=QUESTION)
    fields: Any = {"model": MODEL, "input": "And 1 + 1?", "previous_response_id": first.id}
    counted = strict.responses.input_tokens.count(**fields)
    response = strict.responses.create(**fields)
    assert response.usage is not None and counted.input_tokens == response.usage.input_tokens


def test_structured_output(strict: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    answer = strict.responses.create(
        model=MODEL,
        input=QUESTION,
        text={
            "format": {
                "type": "json_schema",
                "name": "sum",
                "schema": schema | {"additionalProperties": False},
                "strict": True,
            }
        },
    )
    assert set(json.loads(answer.output_text)) == {"sum"}


def test_an_answer_that_is_cut_is_incomplete(strict: openai.OpenAI) -> None:
    response = strict.responses.create(model=MODEL, input=QUESTION, max_output_tokens=1)
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_an_upstream_gets_a_chat(strict: openai.OpenAI, upstream: Upstream) -> None:
    response = strict.responses.create(model="remote", input="hello responses", instructions="I")
    assert response.output_text == "echo: hello responses"
    messages = [{"role": "system", "content": "I"}, {"role": "user", "content": "hello responses"}]
    assert upstream.seen[-1].body == {"model": "far-away", "messages": messages}


def test_a_stream_that_is_cut_is_a_failed_response(strict: openai.OpenAI) -> None:
    events = list(strict.responses.create(model="remote", input="cut", stream=True))
    last = events[-1]
    assert last.type == "response.failed" and last.response.error is not None
    assert last.response.error.code == "server_error" and "upstream" in last.response.error.message


def test_hosted_tools_are_refused_by_name(strict: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="'web_search'"):
        strict.responses.create(model=MODEL, input=QUESTION, tools=[{"type": "web_search"}])


def test_responses_survive_a_kill(start_server: StartServer, upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(f"models: {{m: {{upstream: {{base_url: '{upstream.base_url}'}}}}}}")
    arguments = ("--policies", str(tmp_path))
    server = start_server(*arguments)
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=60) as client:
        response = client.responses.create(model="m", input=QUESTION)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    second = start_server(*arguments, environment={"PENSTOCK_DATA_DIR": str(server.data_dir)})
    with openai.OpenAI(base_url=second.base_url, api_key="none", max_retries=0, timeout=60) as client:
        assert client.responses.retrieve(response.id).output_text == response.output_text
        following = client.responses.create(
            model="m", previous_response_id=response.id, input="What is 1 + 1?"
        )
        assert following.output_text
    asked = [message["content"] for message in upstream.seen[-1].body["messages"]]
    assert asked == [QUESTION, response.output_text, "What is 1 + 1?"]


def test_a_response_in_the_background(strict: openai.OpenAI) -> None:
    begun = strict.responses.create(model=MODEL, input=QUESTION, background=True)
    assert begun.status == "in_progress" and begun.background
    wait_until(
        lambda: strict.responses.retrieve(begun.id).status == "completed", 60, lambda: "it never completed"
    )
    assert "42" in strict.responses.retrieve(begun.id).output_text
    with strict.responses.create(model=MODEL, input=QUESTION, background=True, stream=True) as stream:
        first = next(iter(stream))  # then the client leaves
    assert first.type == "response.created"
    with strict.responses.retrieve(first.response.id, stream=True, starting_after=0) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "response.completed" and "42" in events[-1].response.output_text


def test_a_response_in_the_background_is_cancelled(strict: openai.OpenAI, upstream: Upstream) -> None:
    begun = strict.responses.create(model="remote", input="hold", background=True)
    cancelled = strict.responses.cancel(begun.id)
    assert cancelled.status == "cancelled" == strict.responses.retrieve(begun.id).status
    with pytest.raises(openai.BadRequestError, match="background"):
        strict.responses.cancel(strict.responses.create(model="remote", input="x").id)

"""Streamed and whole responses are the same response, to OpenAI's own types."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.answer import Delta, FinishReason, TokenInfo, ToolCallDelta, Usage
from gateway.errors import RateLimited, UpstreamFailed
from gateway.exchange.shape import CollectedChoice
from gateway.openai.responses.input_items import chat_messages, read_items
from gateway.openai.responses.request import read_request
from gateway.openai.responses.shape import ResponseShape
from gateway.requests.reasoning_details import read_blocks

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=3)
BODY = {"model": "m", "input": "Hi."}
ITEM_EVENTS = ("response.output_item.added", "response.output_item.done")


def shape(**fields: object) -> ResponseShape:
    return ResponseShape(read_request(BODY | fields), "m", shows_reasoning=True)


def parsed(raw: bytes) -> list[Any]:
    """The events, numbered without a gap; their names are those in their data."""
    events = []
    for number, block in enumerate(raw.decode().removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = EVENT.validate_json(data.removeprefix("data: "))
        assert (name, event.sequence_number) == (f"event: {event.type}", number)
        events.append(event)
    return events


def streamed(deltas: list[Delta], **fields: object) -> list[Any]:
    made = shape(**fields)
    return parsed(made.opening() + b"".join(map(made.chunk, deltas)) + made.closing(USAGE))


def whole(deltas: list[Delta], **fields: object) -> Response:
    choice = CollectedChoice()
    for delta in deltas:
        calls = [ToolCallDelta(c.index, c.arguments, c.call_id, c.name) for c in delta.tool_calls]
        choice.add(replace(delta, tool_calls=calls))
    return Response.model_validate_json(shape(**fields).whole([choice], USAGE))


def without_ids(response: Response) -> dict[str, Any]:
    found = response.model_dump(exclude={"id", "created_at", "completed_at"})
    for item in found["output"]:
        del item["id"]
    return found


def call(index: int, arguments: str, name: str = "") -> Delta:
    return Delta(0, tool_calls=[ToolCallDelta(index, arguments, f"call_{index}" if name else "", name)])


def end(reason: FinishReason) -> Delta:
    return Delta(0, finish_reason=reason)


ANSWER = [
    Delta(0, reasoning="hm"),
    *(Delta(0, "4"), Delta(0, "2")),
    *(call(0, "{", "add"), call(0, "}")),
    end("tool_calls"),
]


@pytest.mark.parametrize("summary", [None, "auto"])
def test_events_come_in_the_documented_order(summary: str | None) -> None:
    events = streamed(ANSWER, reasoning={"summary": summary})
    part, text = (
        ("reasoning_summary_part", "reasoning_summary_text")
        if summary
        else ("content_part", "reasoning_text")
    )
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", f"{part}.added", f"{text}.delta", f"{text}.done", f"{part}.done"),
        "output_item.done",
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    indices = [event.output_index for event in events if hasattr(event, "output_index")]
    assert indices == sorted(indices) and set(indices) == {0, 1, 2}


def test_items_keep_their_ids_from_first_to_last() -> None:
    events = streamed(ANSWER)
    added = [event.item.id for event in events if event.type == ITEM_EVENTS[0]]
    done = [event.item for event in events if event.type == ITEM_EVENTS[1]]
    assert added == [item.id for item in done] == [item.id for item in events[-1].response.output]
    named = {event.item_id for event in events if hasattr(event, "item_id")}
    assert named == set(added)
    assert [item.model_dump() for item in done] == [item.model_dump() for item in events[-1].response.output]


def test_an_answer_that_ends_early_is_incomplete() -> None:
    reasons: list[tuple[FinishReason, str]] = [
        ("length", "max_output_tokens"),
        ("content_filter", "content_filter"),
    ]
    for reason, expected in reasons:
        found = whole([Delta(0, "4"), end(reason)])
        assert found.status == "incomplete" and found.incomplete_details is not None
        assert found.incomplete_details.reason == expected and found.completed_at is None
        assert found.output[0].status == "incomplete"  # type: ignore[union-attr]
        assert streamed([Delta(0, "4"), end(reason)])[-1].type == "response.incomplete"


def test_a_stream_that_fails_ends_with_the_failed_response() -> None:
    made = shape()
    raw = made.opening() + made.chunk(Delta(0, "4")) + made.failed(UpstreamFailed("It broke."))
    last = parsed(raw)[-1]
    assert last.type == "response.failed" and last.response.status == "failed"
    assert (last.response.error.code, last.response.error.message) == ("server_error", "It broke.")
    assert last.response.output[0].status == "incomplete"
    assert b'"code":"rate_limit_exceeded"' in shape().failed(RateLimited("\ud800"))


def test_the_request_is_echoed_with_its_defaults() -> None:
    tool = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
    fields: dict[str, Any] = {"instructions": "I", "metadata": {"a": "b"}, "tools": [tool], "store": False}
    found = whole([Delta(0, "4"), end("stop")], **fields)
    assert (found.instructions, found.metadata, found.temperature) == ("I", {"a": "b"}, 1.0)
    assert found.tools[0].name == "add" and found.tool_choice == "auto"  # type: ignore[union-attr]
    assert found.usage is not None and found.usage.total_tokens == 29
    assert found.usage.input_tokens_details.cached_tokens == 16
    assert found.usage.output_tokens_details.reasoning_tokens == 3


def test_log_probabilities() -> None:
    deltas = [Delta(0, "4", [TokenInfo("4", b"4", -0.5, [("5", b"5", -1.5)])]), end("stop")]
    item: Any = whole(deltas, top_logprobs=1).output[0]
    entry = {"token": "4", "bytes": [52], "logprob": -0.5}
    top = [{"token": "5", "bytes": [53], "logprob": -1.5}]
    assert item.content[0].logprobs[0].model_dump() == {**entry, "top_logprobs": top}
    assert streamed(deltas, top_logprobs=1)[4].logprobs[0].logprob == -0.5


def test_obfuscated_deltas_hide_their_length() -> None:
    made = shape(stream=True, stream_options={"include_obfuscation": True})
    made.opening()
    sizes = {len(made.chunk(Delta(0, "a" * size))) for size in range(1, 9)}
    first = made.chunk(Delta(0, "a"))
    assert json.loads(first.partition(b"data: ")[2])["obfuscation"]
    assert len(sizes) <= 3  # the first chunk has more events; numbers have one or two digits


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(
    st.lists(TEXTS, max_size=4),
    st.lists(TEXTS, max_size=4),
    st.lists(TEXTS, max_size=3),
    st.sampled_from([None, "auto"]),
    st.data(),
)
def test_any_stream_is_the_whole_response(
    thoughts: list[str], texts: list[str], arguments: list[str], summary: str | None, data: st.DataObject
) -> None:
    deltas = [Delta(0, reasoning=text) for text in thoughts] + [Delta(0, text) for text in texts]
    for index, text in enumerate(arguments):
        cut = data.draw(st.integers(0, len(text)))
        deltas += [call(index, text[:cut], "f"), call(index, text[cut:])]
    deltas.append(end("tool_calls" if arguments else "stop"))
    reasoning = {"summary": summary}
    events = streamed(deltas, reasoning=reasoning)
    assert without_ids(events[-1].response) == without_ids(whole(deltas, reasoning=reasoning))
    shown = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert shown == "".join(texts) == events[-1].response.output_text


def test_signed_reasoning_comes_back_to_the_upstream_that_signed_it() -> None:
    called = replace(call(0, "{}", "add"), reasoning_signature="gemini:x")
    deltas = [
        Delta(0, reasoning="hm"),
        Delta(0, reasoning="!", reasoning_signature="signed"),
        called,
        end("tool_calls"),
    ]
    answer = whole(deltas)
    events = streamed(deltas)
    assert without_ids(events[-1].response) == without_ids(answer)
    items = read_items([item.model_dump(exclude_none=True) for item in answer.output])
    (message,) = chat_messages(items)
    assert read_blocks(message, "") == [("hm!", "signed"), ("", "gemini:x")]
    assert message["reasoning_content"] == "hm!" and message["tool_calls"][0]["function"]["name"] == "add"


TOOLS = [
    {"type": "custom", "name": "patch"},
    {"type": "local_shell"},
    {
        "type": "namespace",
        "name": "s",
        "description": "",
        "tools": [{"type": "function", "name": "add"}],
    },
    {"type": "tool_search", "execution": "client"},
]
CALLS = [
    Delta(0, tool_calls=[ToolCallDelta(0, '{"input": "a\\', "c0", "patch")]),
    Delta(
        0, tool_calls=[ToolCallDelta(0, 'nb"}'), ToolCallDelta(1, '{"command": ["ls"]', "c1", "local_shell")]
    ),
    Delta(0, tool_calls=[ToolCallDelta(1, "}"), ToolCallDelta(2, "{}", "c2", "add")]),
    Delta(0, tool_calls=[ToolCallDelta(3, '{"query": "x"}', "c3", "tool_search")]),
    Delta(0, tool_calls=[ToolCallDelta(4, "just text", "c4", "patch")], finish_reason="tool_calls"),
]


def test_calls_of_every_kind_of_tool() -> None:
    events = streamed(CALLS, tools=TOOLS)
    output = whole(CALLS, tools=TOOLS).output
    found = [item.model_dump(exclude_none=True, exclude={"id", "status"}) for item in output]
    assert found == [
        {"type": "custom_tool_call", "call_id": "c0", "name": "patch", "input": "a\nb"},
        {
            "type": "local_shell_call",
            "call_id": "c1",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "function_call", "call_id": "c2", "name": "add", "namespace": "s", "arguments": "{}"},
        {"type": "tool_search_call", "call_id": "c3", "arguments": {"query": "x"}, "execution": "client"},
        {"type": "custom_tool_call", "call_id": "c4", "name": "patch", "input": "just text"},
    ]
    assert without_ids(events[-1].response) == without_ids(whole(CALLS, tools=TOOLS))
    deltas = [event for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert [event.delta for event in deltas] == ["a", "\nb", "just text"]
    done = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert [event.input for event in done] == ["a\nb", "just text"]

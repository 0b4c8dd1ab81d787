"""Streamed and whole messages are the same message, to Anthropic's own client."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.answer import Delta, FinishReason, ToolCallDelta, Usage
from gateway.anthropic.shape import MessageShape, usage_object
from gateway.exchange.shape import CollectedChoice
from gateway.providers.upstream.gemini.contents import SIGNATURE as GEMINI
from gateway.requests.reasoning_details import REDACTED

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
USAGE = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=16, reasoning_tokens=3)


def parsed(raw: bytes) -> list[RawMessageStreamEvent]:
    """The events; their names are those in their data."""
    events = []
    for block in raw.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]
        events.append(EVENT.validate_json(data.removeprefix("data: ")))
    return events


def streamed(deltas: list[Delta], *, shows_thinking: bool = True) -> list[RawMessageStreamEvent]:
    shape = MessageShape("m", USAGE, shows_thinking=shows_thinking)
    raw = shape.opening() + b"".join(shape.chunk(delta) for delta in deltas) + shape.closing(USAGE)
    return parsed(raw)


def whole(deltas: list[Delta], *, shows_thinking: bool = True) -> dict[str, Any]:
    shape = MessageShape("m", USAGE, shows_thinking=shows_thinking)
    choice = CollectedChoice()
    for delta in deltas:
        calls = [ToolCallDelta(c.index, c.arguments, c.call_id, c.name) for c in delta.tool_calls]
        choice.add(replace(delta, tool_calls=calls))
    return Message.model_validate_json(shape.whole([choice], USAGE)).model_dump(exclude={"id"})


def accumulated(events: list[RawMessageStreamEvent]) -> dict[str, Any]:
    message = None
    buffers: dict[int, bytes] = {}
    for event in events:
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    assert message is not None
    return Message.model_validate(message.model_dump()).model_dump(exclude={"id"})


def call(index: int, arguments: str, name: str = "") -> Delta:
    return Delta(0, tool_calls=[ToolCallDelta(index, arguments, f"call_{index}" if name else "", name)])


def end(reason: FinishReason, stop_string: str = "") -> Delta:
    return Delta(0, finish_reason=reason, stop_string=stop_string)


def test_events_come_in_the_documented_order() -> None:
    deltas = [
        Delta(0, reasoning="hm"),
        Delta(0, "4"),
        Delta(0, "2"),
        call(0, "", "add"),
        call(0, '{"a": 1}'),
        call(1, "{}", "sub"),
        end("tool_calls"),
    ]
    events = streamed(deltas)
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    assert [event.type for event in events] == [
        "message_start",
        *(start, delta, delta, stop),  # thinking, its signature
        *(start, delta, delta, stop),
        *(start, delta, delta, stop),
        *(start, delta, stop),
        "message_delta",
        "message_stop",
    ]
    indices = [event.index for event in events if hasattr(event, "index")]
    assert indices == sorted(indices) and set(indices) == {0, 1, 2, 3}


def test_token_counts_are_exclusive_of_the_cached() -> None:
    (first, *_, last, _) = streamed([Delta(0, "a"), end("stop")])
    assert first.type == "message_start" and last.type == "message_delta"
    assert first.message.usage.output_tokens == 0
    assert (last.usage.input_tokens, last.usage.cache_read_input_tokens) == (4, 16)
    assert last.usage.output_tokens == 9 and last.usage.output_tokens_details is not None
    assert last.usage.output_tokens_details.thinking_tokens == 3
    written = usage_object(Usage(prompt_tokens=20, cached_tokens=16, cache_write_tokens=3))
    assert (written["input_tokens"], written["cache_creation_input_tokens"]) == (1, 3)


def test_stop_reasons() -> None:
    reasons = [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal")]
    for given_reason, expected in reasons:
        assert whole([Delta(0, "a"), end(given_reason)])["stop_reason"] == expected  # type: ignore[arg-type]
    found = whole([Delta(0, "a"), end("stop", "END")])
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "END")


def test_arguments_keep_their_numbers_and_are_always_an_object() -> None:
    shape = MessageShape("m", USAGE, shows_thinking=False)
    choice = CollectedChoice(
        tool_calls=[ToolCallDelta(0, '{"a":1.10}', "x", "f"), ToolCallDelta(1, "{", "y", "f")]
    )
    body = shape.whole([choice], USAGE)
    assert b'"input":{"a":1.10}' in body and b'"input":{"invalid_arguments":"{"}' in body


def test_thinking_is_hidden_from_those_who_do_not_ask() -> None:
    deltas = [Delta(0, reasoning="hm"), Delta(0, "4"), end("stop")]
    assert [block["type"] for block in whole(deltas, shows_thinking=False)["content"]] == ["text"]
    assert accumulated(streamed(deltas, shows_thinking=False)) == whole(deltas, shows_thinking=False)


def test_an_upstreams_thinking_keeps_its_signature() -> None:
    deltas = [
        Delta(0, reasoning="h"),
        Delta(0, reasoning="m", reasoning_signature="one"),
        Delta(0, reasoning_signature=REDACTED + "data"),
        Delta(0, reasoning="so", reasoning_signature="two"),
        Delta(0, "4"),
        end("stop"),
    ]
    found = whole(deltas)
    assert found["content"][:3] == [
        {"type": "thinking", "thinking": "hm", "signature": "one"},
        {"type": "redacted_thinking", "data": "data"},
        {"type": "thinking", "thinking": "so", "signature": "two"},
    ]
    assert accumulated(streamed(deltas)) == found
    ours = whole([Delta(0, reasoning="hm"), end("stop")])
    assert ours["content"][0]["signature"].startswith("penstock:")


def test_the_signature_of_a_call_is_a_block_before_it() -> None:
    called = replace(call(0, "{}", "add"), reasoning_signature=GEMINI + "x")
    deltas = [Delta(0, "So:"), called, end("tool_calls")]
    (*_, signed, use) = accumulated(streamed(deltas))["content"]
    assert signed == {"type": "thinking", "thinking": "", "signature": "gemini:x"} and use["name"] == "add"
    assert signed in whole(deltas)["content"]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(
    st.lists(TEXTS, max_size=4),
    st.lists(TEXTS, max_size=4),
    st.lists(st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=3),
    st.data(),
)
def test_any_stream_is_the_whole_message(
    thoughts: list[str], texts: list[str], inputs: list[dict[str, str]], data: st.DataObject
) -> None:
    deltas = [Delta(0, reasoning=text) for text in thoughts] + [Delta(0, text) for text in texts]
    for index, arguments in enumerate(map(json.dumps, inputs)):
        cut = data.draw(st.integers(0, len(arguments)))
        deltas += [call(index, arguments[:cut], "f"), call(index, arguments[cut:])]
    reason: FinishReason = "tool_calls" if inputs else "stop"
    deltas.append(end(reason))
    assert accumulated(streamed(deltas)) == whole(deltas)

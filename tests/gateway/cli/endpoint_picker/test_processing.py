"""One stream of external processing, in each mode of bodies: a destination, and nothing lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.endpoint_picker import processing
from gateway.cli.endpoint_picker.messages import BodyMode, Message, ProcessingRequest
from gateway.cli.endpoint_picker.picker import Asked, Refusal
from gateway.cli.endpoint_picker.processing import DESTINATION, Processing

HEADERS = [
    {"key": ":path", "raw_value": b"/v1/chat/completions"},
    {"key": "Authorization", "value": "Bearer sk"},
    {"key": DESTINATION, "raw_value": b"10.9.9.9:1"},  # what a client made up
]


class Picker:
    """What is asked, and a fixed answer."""

    def __init__(self, refusal: Refusal | None = None) -> None:
        self.asked: list[Asked] = []
        self.refusal = refusal

    async def pick(self, asked: Asked) -> str:
        self.asked.append(asked)
        if self.refusal is not None:
            raise self.refusal
        return "10.0.0.7:8080"


def headers(*, ends: bool = False, **more: object) -> Message:
    return ProcessingRequest(request_headers={"headers": {"headers": HEADERS}, "end_of_stream": ends}, **more)


def body(text: bytes, *, ends: bool = True) -> Message:
    return ProcessingRequest(request_body={"body": text, "end_of_stream": ends})


def mode(request: BodyMode, response: BodyMode = BodyMode.NONE) -> dict[str, Any]:
    return {"protocol_config": {"request_body_mode": request, "response_body_mode": response}}


async def run(picker: Picker, *messages: Message) -> list[Message]:
    async def sent() -> AsyncIterator[Message]:
        for message in messages:
            yield message

    return [each async for each in Processing(picker.pick, 1_000_000).answers(sent())]


def destination(response: Message, phase: str = "request_headers") -> str:
    (option,) = getattr(response, phase).response.header_mutation.set_headers
    assert option.header.key == DESTINATION and option.append_action == 2, "it replaces a client's own"
    found: str = option.header.raw_value.decode()
    assert response.dynamic_metadata["envoy.lb"][DESTINATION] == found, "the two must not differ"
    return found


def phases(responses: list[Message]) -> list[str]:
    return [response.ListFields()[0][0].name for response in responses]


def streamed(responses: list[Message], phase: str) -> bytes:
    pieces = [getattr(each, phase).response.body_mutation.streamed_response for each in responses]
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(piece.body) < 65_536 for piece in pieces)
    return b"".join(piece.body for piece in pieces)


@given(sizes=st.lists(st.integers(0, 150_000), min_size=1, max_size=5))
async def test_a_streamed_body_waits_for_its_end_and_goes_on_whole(sizes: list[int]) -> None:
    text = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    picker = Picker()
    bodies = [body(piece, ends=number == len(text) - 1) for number, piece in enumerate(text)]
    first, *rest = await run(picker, headers(), *bodies)
    assert destination(first) == "10.0.0.7:8080"
    assert streamed(rest, "request_body") == b"".join(text)
    assert picker.asked == [Asked("/v1/chat/completions", "Bearer sk", b"".join(text))]


async def test_trailers_end_a_streamed_body() -> None:
    picker = Picker()
    found = await run(picker, headers(), body(b"x", ends=False), ProcessingRequest(request_trailers={}))
    assert phases(found) == ["request_headers", "request_body", "request_trailers"]
    assert not found[1].request_body.response.body_mutation.streamed_response.end_of_stream
    assert picker.asked[0].body == b"x"


async def test_a_buffered_body_is_asked_for_and_left_as_it_is() -> None:
    found = await run(picker := Picker(), headers(**mode(BodyMode.BUFFERED)), body(b"{}"))
    assert phases(found) == ["request_headers", "request_body"]
    assert not found[0].request_headers.response.header_mutation.set_headers
    assert destination(found[1], "request_body") == "10.0.0.7:8080"
    assert not found[1].request_body.response.HasField("body_mutation")
    assert picker.asked[0].body == b"{}"


@pytest.mark.parametrize("sent", [headers(ends=True), headers(**mode(BodyMode.NONE))])
async def test_without_a_body_the_headers_decide(sent: Message) -> None:
    (found,) = await run(Picker(), sent)
    assert destination(found) == "10.0.0.7:8080"


async def test_pieces_that_want_an_answer_each_come_after_the_choice() -> None:
    found = await run(
        picker := Picker(), headers(**mode(BodyMode.STREAMED)), body(b"a", ends=False), body(b"b")
    )
    assert destination(found[0]) and phases(found) == ["request_headers", "request_body", "request_body"]
    assert len(picker.asked) == 1


@pytest.mark.parametrize("is_text", [True, False])
async def test_the_proxys_subset_is_told(is_text: bool) -> None:
    message = headers(ends=True)
    hint: Any = "10.0.0.1:80,10.0.0.2:80" if is_text else ["10.0.0.1:80", "10.0.0.2:80"]
    entry = message.metadata_context.filter_metadata.add(key="envoy.lb.subset_hint")
    entry.value.update({"x-gateway-destination-endpoint-subset": hint})
    await run(picker := Picker(), message)
    assert picker.asked[0].subset == ["10.0.0.1:80", "10.0.0.2:80"]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_an_answer_and_ends_the_stream(status: int) -> None:
    picker = Picker(Refusal(status, "No."))
    (found,) = await run(picker, headers(), body(b"{}"), ProcessingRequest(request_trailers={}))
    assert found.immediate_response.status.code == status
    assert json.loads(found.immediate_response.body)["error"]["message"] == "No."


async def test_a_body_without_end_is_refused() -> None:
    (found,) = await run(Picker(), headers(), *[body(b"x" * 600_000, ends=False)] * 2, body(b""))
    assert found.immediate_response.status.code == 413


async def test_answers_pass_unchanged() -> None:
    sent = [
        headers(ends=True, **mode(BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED)),
        ProcessingRequest(response_headers={}),
        ProcessingRequest(response_body={"body": b"y" * 2 * processing.CHUNK_BYTES, "end_of_stream": True}),
        ProcessingRequest(response_trailers={}),
    ]
    found = (await run(Picker(), *sent))[1:]
    assert phases(found) == ["response_headers", "response_body", "response_body", "response_trailers"]
    assert streamed(found[1:3], "response_body") == b"y" * 2 * processing.CHUNK_BYTES
    sent[0] = headers(ends=True, **mode(BodyMode.NONE, BodyMode.STREAMED))
    found = (await run(Picker(), *sent))[1:]
    assert phases(found) == ["response_headers", "response_body", "response_trailers"]
    assert not found[1].response_body.response.HasField("body_mutation")

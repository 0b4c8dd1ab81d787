"""Streams of every translated API, cut at every byte: the same answer, or an error, at every endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.answer import Delta, ToolCallDelta, Usage
from gateway.anthropic.shape import MessageShape
from gateway.errors import ApiError
from gateway.exchange.shape import Shape
from gateway.openai.chat import ChatShape
from gateway.openai.responses.request import read_request
from gateway.openai.responses.shape import ResponseShape
from gateway.providers.upstream.answer_stream import AnswerStream, EventSplitter
from gateway.providers.upstream.anthropic.reader import MessageReader
from gateway.providers.upstream.bedrock.events import AwsEventReader
from gateway.providers.upstream.bedrock.reader import ConverseReader
from gateway.providers.upstream.chat_reader import ChatReader
from gateway.providers.upstream.gemini.reader import CandidateReader
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.sse import EventReader
from gateway.providers.upstream.translated import TranslatedDeltas
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from tests.gateway.providers.upstream.anthropic import calls as anthropic
from tests.gateway.providers.upstream.anthropic.calls import collected, shown
from tests.gateway.providers.upstream.bedrock import calls as bedrock
from tests.gateway.providers.upstream.gemini import calls as gemini


class Api(NamedTuple):
    stream: bytes
    expected: tuple[Any, ...]
    reader: Callable[[], ChatReader]
    events: Callable[[], EventSplitter] = EventReader


APIS = {
    "anthropic": Api(anthropic.EVENTS, anthropic.EXPECTED, lambda: MessageReader("m", Redactor())),
    "gemini": Api(gemini.EVENTS, gemini.EXPECTED, lambda: CandidateReader("m", Redactor(), 1)),
    "bedrock": Api(bedrock.EVENTS, bedrock.EXPECTED, lambda: ConverseReader("m", Redactor()), AwsEventReader),
}
apis = pytest.mark.parametrize("api", APIS.values(), ids=APIS.keys())


class Pieces:
    """A reply that arrives in these pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    async def read(self, timeout_s: float) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def close(self) -> None:
        self._pieces.clear()


async def deltas(api: Api, pieces: Sequence[bytes]) -> list[Delta]:
    reader = api.reader()
    stream = AnswerStream(Pieces(pieces), reader, 9.0, api.events())  # type: ignore[arg-type]
    return [delta async for delta in TranslatedDeltas(reader, stream)]


@apis
async def test_every_cut_in_two_and_single_bytes_give_the_same_deltas(api: Api) -> None:
    whole = await deltas(api, [api.stream])
    assert shown(collected(await deltas(api, [api.stream]))) == api.expected
    for cut in range(1, len(api.stream)):
        assert await deltas(api, [api.stream[:cut], api.stream[cut:]]) == whole
    assert await deltas(api, [api.stream[i : i + 1] for i in range(len(api.stream))]) == whole


@apis
async def test_a_stream_that_ends_anywhere_is_whole_or_an_error(api: Api) -> None:
    num_whole = 0
    for end in range(len(api.stream) + 1):
        try:
            found = await deltas(api, [api.stream[:end]])
        except ApiError as error:
            assert error.status == 502 and error.code in ("upstream_invalid_response", "upstream_failed")
        else:
            num_whole += 1
            assert shown(collected(found)) == api.expected
    assert 1 <= num_whole <= 5  # without the last line feeds


FIELDS: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
SHAPES: dict[str, Callable[[], Shape]] = {
    "chat": lambda: ChatShape(typed(FIELDS, ChatRequest), "m", None, offers_tools=True),
    "responses": lambda: ResponseShape(read_request({"model": "m", "input": "x"}), "m", shows_reasoning=True),
    "messages": lambda: MessageShape("m", Usage(), shows_thinking=True),
}


def pieces_of(shape: Shape, found: Sequence[Delta]) -> dict[int, str]:
    """The arguments of each call, joined from the events of an endpoint, by their place in the answer."""
    raw = shape.opening() + b"".join(map(shape.chunk, found)) + shape.closing(Usage())
    joined: dict[int, str] = {}
    for event in raw.decode().split("\n\n"):
        data = event.partition("data: ")[2]
        body = json.loads(data) if data.startswith("{") else {}
        for call in [c for choice in body.get("choices", ()) for c in choice["delta"].get("tool_calls", ())]:
            joined[call["index"]] = joined.get(call["index"], "") + call["function"]["arguments"]
        if body.get("type") == "response.function_call_arguments.delta":
            joined[body["output_index"]] = joined.get(body["output_index"], "") + body["delta"]
        if body.get("type") == "content_block_delta" and "partial_json" in body["delta"]:
            joined[body["index"]] = joined.get(body["index"], "") + body["delta"]["partial_json"]
    return joined


@pytest.mark.parametrize("endpoint", SHAPES)
@apis
async def test_calls_come_through_every_endpoint(api: Api, endpoint: str) -> None:
    joined = pieces_of(SHAPES[endpoint](), await deltas(api, [api.stream]))
    found = [json.loads(joined[place] or "{}") for place in sorted(joined)]
    assert found == [arguments for _, _, arguments in api.expected[2]]


@settings(max_examples=40)
@given(
    arguments=st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=5), min_size=1, max_size=3),
    endpoint=st.sampled_from(sorted(SHAPES)),
)
def test_arguments_survive_every_chunking(arguments: list[list[str]], endpoint: str) -> None:
    texts = [[json.dumps(piece)[1:-1] for piece in pieces] for pieces in arguments]
    found = [Delta(0, "Let me see.")]
    for number, pieces in enumerate(texts):
        found.append(Delta(0, tool_calls=[ToolCallDelta(number, "", f"call_{number}", "add")]))
        found += [Delta(0, tool_calls=[ToolCallDelta(number, piece)]) for piece in pieces]
    joined = pieces_of(SHAPES[endpoint](), [*found, Delta(0, finish_reason="tool_calls")])
    found_texts = [joined[place] for place in sorted(joined)]
    assert list(filter(None, found_texts)) == list(filter(None, map("".join, texts)))

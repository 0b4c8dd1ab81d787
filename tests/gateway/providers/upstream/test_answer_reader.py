"""Answers that violate the API, whole and streamed: never complete, never counted, never endless."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gateway.answer import Relayed, Usage
from gateway.errors import ApiError
from gateway.fleet.retries import cause_of
from gateway.providers.base import ModelCall
from gateway.requests.parse import typed
from gateway.requests.types import CompletionRequest, EmbeddingRequest
from tests.gateway.providers.upstream.heartbeat import heartbeat
from tests.gateway.providers.upstream.provider_calls import (
    DONE,
    KEY,
    call,
    collect,
    event,
    failure,
    piece,
    provider,
    streaming,
)
from tests.gateway.providers.upstream.scripted_server import (
    STREAM_HEAD,
    Seen,
    always,
    chunk,
    response,
    serving,
)

pytestmark = pytest.mark.usefixtures("transport", "no_secret_in_the_log")


def part(index: object = 0, finish: str | None = None, **delta: object) -> bytes:
    """A chunk of one choice as an event."""
    return event(
        json.dumps({"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}).encode()
    )


async def stream_failure(*pieces: bytes, **fields: object) -> ApiError:
    """The error of a stream that must not pass as complete."""
    async with serving(streaming(*pieces)) as server:
        with pytest.raises(ApiError) as caught:
            received = b""
            answer = await provider(server).chat(call(stream=True, **fields))
            async for data in cast(AsyncIterator[bytes], answer.body):
                received += data
        assert DONE not in received
    return caught.value


# Completeness


@pytest.mark.parametrize(
    ("n", "pieces", "code"),
    [
        (2, [part(0), part(0, "stop")], "upstream_wrong_count"),
        (2, [part(0), part(0, "stop"), DONE], "upstream_wrong_count"),
        (2, [part(0), part(0, "stop"), part(1), DONE], "upstream_invalid_response"),
        (2, [part(0), part(0, "stop"), part(0, "stop"), DONE], "upstream_wrong_count"),
        (1, [part(0), DONE], "upstream_invalid_response"),
        (1, [DONE], "upstream_invalid_response"),
        (1, [event(b'{"choices": [], "usage": {"prompt_tokens": 1}}'), DONE], "upstream_invalid_response"),
    ],
    ids=["cut", "done", "second has begun", "same one twice", "no finish", "only done", "usage only"],
)
async def test_stream_without_all_finish_reasons_is_incomplete(
    n: int, pieces: list[bytes], code: str
) -> None:
    error = await stream_failure(*pieces, n=n)
    assert (error.status, error.code) == (502, code)
    assert "before the answer was complete" in error.message


async def test_choices_may_be_mixed_and_all_must_end() -> None:
    pieces = [part(1), part(0), part(1, "length"), part(0, "stop")]
    for end in ([DONE], []):
        async with serving(streaming(*pieces, *end)) as server:
            answer = await provider(server).chat(call(stream=True, n=2))
            assert (await collect(answer)).endswith(DONE)
            assert answer.finish_reasons == ["length", "stop"]


async def test_what_follows_a_finish_reason_changes_nothing() -> None:
    """Azure sends content filter results, and others repeat the finish reason, after it."""
    pieces = [part(0, "stop"), part(0, content_filter_results={}), part(0, "length"), DONE]
    async with serving(streaming(*pieces)) as server:
        answer = await provider(server).chat(call(stream=True))
        assert await collect(answer) == b"".join(pieces)
        assert answer.finish_reasons == ["stop"]


@pytest.mark.parametrize("index", [-1, 1, 2, 1_000_000_000, 10**30, "0", 0.5, True])
async def test_choice_that_was_not_asked_for_is_refused(index: object) -> None:
    error = await stream_failure(part(index), part(0, "stop"), DONE)
    assert (error.status, error.code) == (502, "upstream_invalid_response")


@pytest.mark.parametrize("index", [-1, 1_000_000_000, 10**30, "0"])
async def test_absurd_tool_call_index_is_refused(index: object) -> None:
    calls = [{"index": index, "function": {"name": "f", "arguments": "{}"}}]
    error = await stream_failure(part(0, tool_calls=calls), part(0, "tool_calls"), DONE)
    assert (error.status, error.code) == (502, "upstream_invalid_response")


@pytest.mark.parametrize("index", [{"index": 0}, {"index": 127}, {"index": None}, {}])
async def test_usual_tool_call_indices_pass(index: dict[str, object]) -> None:
    pieces = [part(0, tool_calls=[{**index, "function": {"name": "f"}}]), part(0, "tool_calls"), DONE]
    async with serving(streaming(*pieces)) as server:
        assert await collect(await provider(server).chat(call(stream=True))) == b"".join(pieces)


def whole(*indices: object) -> bytes:
    choices = [{"index": i, "message": {"content": "a"}, "finish_reason": "stop"} for i in indices]
    return json.dumps({"choices": choices}).encode()


@pytest.mark.parametrize(
    ("indices", "code"),
    [
        ((), "upstream_invalid_response"),
        ((0,), "upstream_wrong_count"),
        ((0, 1, 2), "upstream_wrong_count"),
        ((0, 5), "upstream_invalid_response"),
    ],
)
async def test_whole_answer_has_the_choices_asked_for(indices: tuple[int, ...], code: str) -> None:
    async with serving(always(response(whole(*indices)))) as server:
        error = await failure(server, call(n=2))
    assert (error.status, error.code) == (502, code)
    async with serving(always(response(whole(0, 1)))) as server:
        assert (await provider(server).chat(call(n=2))).finish_reasons == ["stop", "stop"]


def asked(kind: Any, **fields: object) -> ModelCall[Any]:  # noqa: ANN401
    body = {"model": "here", **fields}
    return ModelCall(typed(body, kind), body, "req_1")


@pytest.mark.parametrize(("prompt", "count"), [("a", 1), ([1, 2, 3], 1), (["a", "b"], 2), ([[1], [2]], 2)])
async def test_completions_have_a_choice_per_prompt_and_n(prompt: object, count: int) -> None:
    request = asked(CompletionRequest, prompt=prompt, n=2)
    async with serving(always(response(whole(*range(2 * count))))) as server:
        assert len((await provider(server).complete(request)).finish_reasons) == 2 * count
    async with serving(always(response(whole(*range(2 * count - 1))))) as server:
        with pytest.raises(ApiError, match=f"{2 * count - 1} of {2 * count} choices"):
            await provider(server).complete(request)


async def test_embeddings_have_a_vector_per_input() -> None:
    request = asked(EmbeddingRequest, input=["a", "b"])
    for count in (2, 1, 0, 3):
        body = json.dumps({"data": [{"embedding": [0.5], "index": i} for i in range(count)]}).encode()
        async with serving(always(response(body))) as server:
            if count == 2:
                assert (await provider(server).embed(request)).body == body
            else:
                with pytest.raises(ApiError, match=f"{count} of 2 vectors"):
                    await provider(server).embed(request)


async def test_an_answer_with_too_few_vectors_is_charged() -> None:
    body = json.dumps({"data": [{"embedding": [1], "index": 0}], "usage": {"prompt_tokens": 70}}).encode()
    request = asked(EmbeddingRequest, input=["12345678", "1234"])
    async with serving(always(response(body))) as server:
        with pytest.raises(ApiError, match="1 of 2 vectors"):
            await provider(server).embed(request)
    assert request.lost == [Usage(70)]


# Usage


@pytest.mark.parametrize(
    "usage",
    [
        '{"prompt_tokens": -5, "completion_tokens": 1}',
        '{"prompt_tokens": 1, "completion_tokens": -1}',
        '{"prompt_tokens": 1, "completion_tokens": 1000000000000}',
        '{"prompt_tokens": 1e999}',
        '{"prompt_tokens": 1.5}',
        '{"prompt_tokens": true}',
        '{"prompt_tokens": "7"}',
        f'{{"prompt_tokens": {"9" * 5000}}}',
        '{"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": -1}}',
        '{"completion_tokens_details": {"reasoning_tokens": 1e30}}',
        "[]",
        '"7"',
        "7",
    ],
)
async def test_absurd_usage_is_not_counted(usage: str, caplog: pytest.LogCaptureFixture) -> None:
    good = '{"prompt_tokens": 7, "completion_tokens": 2}'
    choice = '{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}'
    body = f'{{"choices": [{choice}], "usage": {usage}}}'.encode()
    async with serving(always(response(body))) as server:
        answer = await provider(server).chat(call())
        assert answer.body == body
        assert answer.usage == Usage(1, 1, is_estimated=True)
    pieces = [event(f'{{"choices": [], "usage": {each}}}'.encode()) for each in (good, usage, usage)]
    async with serving(streaming(part(0, "stop"), *pieces, DONE)) as server:
        caplog.clear()
        answer = await provider(server).chat(call(stream=True))
        await collect(answer)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 2)
        assert (answer.usage.cached_tokens, answer.usage.reasoning_tokens) == (0, 0)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING and "usage" in r.getMessage()]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "last",
    [
        {},
        {"completion_tokens": 0},
        {"prompt_tokens": None},
        {
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": None},
        },
    ],
)
async def test_later_usage_without_counts_keeps_those_that_are_known(last: dict[str, object]) -> None:
    told = {
        "prompt_tokens": 70,
        "completion_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    odd = event(json.dumps({"choices": [], "usage": last}).encode())
    async with serving(streaming(event(piece("abcd", "stop", usage=told)), odd, DONE)) as server:
        answer = await provider(server).chat(call(stream=True))
        await collect(answer)
    assert answer.usage == Usage(70, 30, 16, 3)


async def test_text_after_the_last_usage_is_estimated() -> None:
    first = event(piece("", usage={"prompt_tokens": 70, "completion_tokens": 1}))
    async with serving(streaming(first, event(piece("x" * 5000)), part(0, "stop"), DONE)) as server:
        answer = await provider(server).chat(call(stream=True))
        await collect(answer)
    assert answer.usage == Usage(70, 1 + 1250, is_estimated=True)


async def test_repeated_usage_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    pieces = [event(piece("a", usage={"prompt_tokens": 3, "completion_tokens": i})) for i in range(1, 6)]
    async with serving(streaming(*pieces, part(0, "stop"), DONE)) as server:
        answer = await provider(server).chat(call(stream=True))
        await collect(answer)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 5)
    assert "usage" not in caplog.text


# JSON


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices": [], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"error": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"choices": [{"delta": {"content": "\xff"}}]}',
        b'{"choices": [{"delta": {"content": "\xed\xa0\x80"}}]}',
        b'{"choices": [{"delta": {"content": NaN}}]}',
        b'{"choices": [{"delta": {"content": "a\nb"}}]}',
        b'{"choices": [{"delta": 5}]}',
        b"{'choices': []}",
        b"[DONE",
        b"\x00",
    ],
    ids=["deep", "deep error", "utf-8", "surrogate", "NaN", "newline", "delta", "quotes", "half done", "nul"],
)
async def test_json_that_clients_could_not_read_is_refused(data: bytes) -> None:
    error = await stream_failure(part(0), event(data.replace(b"\n", b"\ndata: ")), part(0, "stop"), DONE)
    assert (error.status, error.code) == (502, "upstream_invalid_response")
    async with serving(always(response(data))) as server:
        error = await failure(server)
    assert (error.status, error.code) == (502, "upstream_invalid_response")


async def test_finish_reason_and_id_are_bounded_for_telemetry() -> None:
    body = json.dumps(
        {"id": f"{KEY}-" + "x" * 10_000, "choices": [{"finish_reason": KEY + "y" * 10_000}]}
    ).encode()
    async with serving(always(response(body))) as server:
        answer = await provider(server).chat(call())
    assert len(answer.response_id) <= 200 and len(answer.finish_reasons[0]) <= 200
    assert "canary" not in answer.response_id + answer.finish_reasons[0]


# Floods


def flood(unit: bytes, *, start: bytes = b"", times: int = 1000) -> Any:  # noqa: ANN401
    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(STREAM_HEAD + (chunk(start) if start else b""))
        while not writer.is_closing():
            writer.write(chunk(unit * times))
            await writer.drain()

    return script


async def test_headers_and_first_event_share_one_limit() -> None:
    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        await asyncio.sleep(0.4)
        writer.write(STREAM_HEAD)
        await asyncio.sleep(0.4)
        writer.write(chunk(part(0, "stop") + DONE))

    async with serving(script) as server:
        error = await failure(server, call(stream=True), first_token_timeout_s=0.6)
        assert (error.status, error.code) == (504, "upstream_first_token_timeout")


FLOODS = {
    "comments": b": hi\n\n",
    "blank lines": b"\n",
    "fields": b"event: x\nid: 1\n",
    "empty events": b"data:\n\n",
}


@pytest.mark.parametrize("unit", FLOODS.values(), ids=FLOODS.keys())
async def test_flood_without_events_meets_the_limits(unit: bytes) -> None:
    async with serving(flood(unit)) as server, heartbeat() as beat:
        error = await asyncio.wait_for(failure(server, call(stream=True), first_token_timeout_s=0.3), 20)
        assert (error.status, error.code) == (504, "upstream_first_token_timeout")
    async with serving(flood(unit, start=part(0, content="a"))) as server, heartbeat() as beat:
        answer = await provider(server, idle_timeout_s=0.3).chat(call(stream=True))
        with pytest.raises(ApiError) as caught:
            await asyncio.wait_for(collect(answer), 20)
        assert (caught.value.status, caught.value.code) == (504, "upstream_idle_timeout")
        await asyncio.wait_for(server.closed.get(), 5)
    assert beat.longest_turn_s < 0.5


@pytest.mark.parametrize(
    "unit",
    [b"x", b"data: x", b"data: x\n", b"data:\n"],
    ids=["line", "data", "data lines", "empty data lines"],
)
async def test_endless_line_or_event_is_refused(unit: bytes) -> None:
    async with serving(flood(unit, start=part(0, content="a"))) as server, heartbeat() as beat:
        answer = await provider(server).chat(call(stream=True))
        with pytest.raises(ApiError, match="too long"):
            await asyncio.wait_for(collect(answer), 20)
    assert beat.longest_turn_s < 0.5


async def test_an_event_that_is_too_long_is_not_asked_for_again() -> None:
    async with serving(flood(b"data: x")) as server:
        error = await asyncio.wait_for(failure(server, call(stream=True)), 20)
    assert (error.code, cause_of(error)) == ("upstream_answer_too_long", None)


BOMBS = {**FLOODS, "data lines": b"data:\n", "events": b'data: {"choices":[]}\n\n'}


@pytest.mark.parametrize("unit", BOMBS.values(), ids=BOMBS.keys())
async def test_compressed_flood_does_not_stop_the_loop(unit: bytes) -> None:
    packed = gzip.compress(part(0, content="a") + unit * (20_000_000 // len(unit)))
    bomb = always(response(packed, kind="text/event-stream", content_encoding="gzip"))
    async with serving(bomb) as server, heartbeat() as beat:
        answer = await provider(server).chat(call(stream=True))
        with pytest.raises(ApiError) as caught:
            await asyncio.wait_for(collect(answer), 20)
    assert cause_of(caught.value) is None
    assert beat.longest_turn_s < 0.5


@pytest.mark.parametrize(
    ("written", "known"),
    [('"gpt-x"', "gpt-x"), ("5", ""), ("null", ""), ('{"a": 1}', ""), (f'"{KEY}"', None)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_model_that_answers_is_known(written: str, known: str | None, stream: bool) -> None:
    kind = "delta" if stream else "message"
    choice = f'{{"index": 0, "finish_reason": "stop", "{kind}": {{"content": "x"}}}}'
    body = f'{{"model": {written}, "choices": [{choice}]}}'.encode()
    async with serving(streaming(event(body), DONE) if stream else always(response(body))) as server:
        answer = await provider(server).chat(call(stream=stream))
        assert isinstance(answer, Relayed)
        if stream:
            await collect(answer)
        assert KEY not in answer.response_model
        assert known is None or answer.response_model == known

"""The usage of answers over HTTP: asked for, kept from clients that did not ask, estimated where missing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gateway.answer import Relayed, Usage, close_answer
from gateway.errors import ApiError
from gateway.providers.base import ModelCall
from gateway.providers.upstream.generated import in_deltas
from gateway.requests.parse import typed
from gateway.requests.types import CompletionRequest, EmbeddingRequest, ModelRequest
from policies.upstream import UpstreamModel
from tests.gateway.providers.upstream.anthropic import calls as anthropic
from tests.gateway.providers.upstream.bedrock import calls as bedrock
from tests.gateway.providers.upstream.bedrock.events_reply import stream_reply as aws_reply
from tests.gateway.providers.upstream.gemini import calls as gemini
from tests.gateway.providers.upstream.provider_calls import (
    DONE,
    GOOD,
    KEY,
    Script,
    call,
    collect,
    event,
    failure,
    opened,
    piece,
    provider,
    streaming,
)
from tests.gateway.providers.upstream.scripted_server import (
    END,
    STREAM_HEAD,
    ScriptedServer,
    Seen,
    always,
    chunk,
    response,
    serving,
)

pytestmark = pytest.mark.usefixtures("transport")

USAGE = {"prompt_tokens": 70, "completion_tokens": 30}
TOLD = Usage(70, 30)
USAGE_CHUNK = event(json.dumps({"id": "c1", "choices": [], "usage": USAGE}).encode())
TEXT = event(piece("abcdefgh"))
END_CHUNK = event(piece("", "stop"))
PROMPT = 1  # "é"


def estimated(completion: int, prompt: int = PROMPT) -> Usage:
    return Usage(prompt, completion, is_estimated=True)


async def streamed(*pieces: bytes, **fields: object) -> tuple[bytes, Usage, dict[str, Any]]:
    """What the client gets, its usage, and what the upstream was asked."""
    async with serving(streaming(*pieces)) as server:
        answer = await provider(server).chat(call(stream=True, **fields))
        return await collect(answer), answer.usage, json.loads(server.seen[0].body)


def sent(server: ScriptedServer) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(server.seen[-1].body)
    return body


def asked(kind: type[ModelRequest], **fields: object) -> ModelCall[Any]:
    body = {"model": "here", **fields}
    return ModelCall(typed(body, kind), body, "req_1")


# Asked for


@pytest.mark.parametrize(
    ("options", "wanted", "is_shown"),
    [
        ({}, {"include_usage": True}, False),
        ({"stream_options": None}, {"include_usage": True}, False),
        ({"stream_options": {}}, {"include_usage": True}, False),
        ({"stream_options": {"include_usage": None}}, {"include_usage": True}, False),
        ({"stream_options": {"include_usage": False}}, {"include_usage": True}, False),
        ({"stream_options": {"include_usage": True}}, {"include_usage": True}, True),
        (
            {"stream_options": {"include_obfuscation": False}},
            {"include_obfuscation": False, "include_usage": True},
            False,
        ),
        (
            {"stream_options": {"include_obfuscation": True, "include_usage": True}},
            {"include_obfuscation": True, "include_usage": True},
            True,
        ),
    ],
)
async def test_every_stream(options: dict[str, object], wanted: object, is_shown: bool) -> None:
    received, usage, request = await streamed(TEXT, END_CHUNK, USAGE_CHUNK, DONE, **options)
    assert request["stream_options"] == wanted
    assert received == TEXT + END_CHUNK + (USAGE_CHUNK if is_shown else b"") + DONE
    assert usage == TOLD


async def test_a_stream_of_completions() -> None:
    text = event(json.dumps({"choices": [{"index": 0, "text": "abcde", "finish_reason": "stop"}]}).encode())
    for tail, usage in ((USAGE_CHUNK, TOLD), (b"", estimated(2))):
        async with serving(streaming(text, tail or b": nothing\n\n", DONE)) as server:
            answer = await provider(server).complete(asked(CompletionRequest, prompt="é", stream=True))
            assert await collect(answer) == text + DONE
            assert answer.usage == usage and sent(server)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("fields", [{}, {"stream": False}])
async def test_a_whole_answer_has_no_such_field(fields: dict[str, object]) -> None:
    async with serving(always(response(b'{"choices": [{"finish_reason": "stop"}]}'))) as server:
        await provider(server).chat(call(**fields))
        assert "stream_options" not in sent(server)


async def test_an_upstream_that_drops_the_field_is_not_asked() -> None:
    async with serving(streaming(GOOD)) as server:
        upstream = UpstreamModel(base_url=server.base_url, model="there", drop_fields=["stream_options"])
        answer = await opened(upstream).chat(call(stream=True))
        assert await collect(answer) == GOOD
        assert "stream_options" not in sent(server)
        assert answer.usage == estimated(1)


@pytest.mark.parametrize("status", [400, 422])
async def test_an_upstream_that_refuses_the_field(status: int) -> None:
    body = json.dumps({"error": {"message": "Unknown field: stream_options", "type": "x"}}).encode()
    async with serving(always(response(body, status))) as server:
        error = await failure(server, call(stream=True))
        assert error.status == status and "drop_fields: [stream_options]" in error.message
        own = await failure(server, call(stream=True, stream_options={"include_usage": True}))
        assert "drop_fields" not in own.message  # it is the client's field
    other = json.dumps({"error": {"message": "Unknown field: seed", "type": "x"}}).encode()
    async with serving(always(response(other, status))) as server:
        assert "drop_fields" not in (await failure(server, call(stream=True))).message


# Kept from the client


async def test_any_cut_of_the_bytes_gives_the_same() -> None:
    whole = TEXT + event(piece("日🙂")) + END_CHUNK + USAGE_CHUNK + DONE
    wanted = whole.replace(USAGE_CHUNK, b"")
    start = whole.index(USAGE_CHUNK)
    for cut in (
        start - 1,
        start,
        start + 1,
        start + 9,
        start + len(USAGE_CHUNK) - 1,
        start + len(USAGE_CHUNK),
    ):
        received, usage, _ = await streamed(whole[:cut], whole[cut:])
        assert (received, usage) == (wanted, TOLD), cut
    received, usage, _ = await streamed(*(whole[at : at + 1] for at in range(len(whole))))
    assert (received, usage) == (wanted, TOLD)


async def test_bytes_pass_as_they_are() -> None:
    odd = b'data: {"choices":  [ {"delta":{"content":"\\u00e9 \\/"},\t"x": 1e2}],"usage":null}\n\n'
    received, usage, _ = await streamed(odd, END_CHUNK, USAGE_CHUNK, DONE)
    assert received == odd + END_CHUNK + DONE and usage == TOLD


async def test_a_chunk_with_usage_and_content_passes() -> None:
    pieces = [event(piece("a", usage={"prompt_tokens": 70, "completion_tokens": i})) for i in range(1, 30)]
    last = event(piece("", "stop", usage=USAGE))
    received, usage, _ = await streamed(*pieces, last, DONE)
    assert received == b"".join(pieces) + last + DONE and usage == TOLD


@pytest.mark.parametrize("choices", [{}, {"choices": None}, {"choices": []}])
async def test_a_usage_chunk_in_other_shapes(choices: dict[str, object]) -> None:
    early = event(json.dumps({**choices, "usage": USAGE, "x_groq": {"id": "r"}}).encode())
    received, usage, _ = await streamed(early, TEXT, early, END_CHUNK, DONE)
    assert received == TEXT + END_CHUNK + DONE and usage == TOLD


async def test_an_empty_chunk_without_usage_passes() -> None:
    azure = event(b'{"choices": [], "prompt_filter_results": [1], "usage": null}')
    received, usage, _ = await streamed(azure, TEXT, END_CHUNK, DONE)
    assert received == azure + TEXT + END_CHUNK + DONE and usage == estimated(2)


@pytest.mark.parametrize("bad", [-1, 10**12, "7", [], 1.5, True])
async def test_a_bad_usage_is_hidden_and_estimated(bad: object) -> None:
    odd = event(json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": bad}}).encode())
    received, usage, _ = await streamed(TEXT, END_CHUNK, odd, DONE)
    assert received == TEXT + END_CHUNK + DONE and usage == estimated(2)


async def test_whole_numbers_may_be_written_as_floats() -> None:
    told = json.dumps(USAGE)
    floats = re.sub(r"(\d+)", r"\1.0", told)
    assert floats != told
    odd = event(b'{"choices": [], "usage": %s}' % floats.encode())
    received, usage, _ = await streamed(TEXT, END_CHUNK, odd, DONE)
    assert received == TEXT + END_CHUNK + DONE and usage == TOLD


# Estimated


def delta(index: int = 0, finish: str | None = None, **fields: object) -> bytes:
    return event(
        json.dumps({"choices": [{"index": index, "delta": fields, "finish_reason": finish}]}).encode()
    )


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"content": "12345678"}, 2),
        ({"content": "日本語日本語日本"}, 2),
        ({"content": '\ud83d\ude42\n"\\'}, 1),
        ({"content": [{"type": "text", "text": "1234"}, {"type": "thinking", "thinking": "5678"}]}, 2),
        ({"reasoning_content": "12345678"}, 2),
        ({"reasoning": "12345678"}, 2),
        ({"reasoning_content": "12345678", "reasoning": "12345678"}, 2),  # the same twice
        ({"refusal": "12345678"}, 2),
        ({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "12345678"}}]}, 2),
        ({"tool_calls": [{"index": 0, "function": {"arguments": {"at": 1}}}]}, 3),
        ({"tool_calls": [{"index": 0, "custom": {"name": "f", "input": "12345678"}}]}, 2),
        ({"function_call": {"name": "f", "arguments": "12345678"}}, 2),
        ({"content": "1234", "reasoning_content": "5678", "role": "assistant"}, 2),
    ],
)
async def test_all_that_was_generated_counts(fields: dict[str, Any], tokens: int) -> None:
    _, usage, _ = await streamed(delta(**fields), END_CHUNK, DONE)
    assert usage == estimated(tokens)
    body = json.dumps({"choices": [{"message": fields, "finish_reason": "stop"}]}).encode()
    async with serving(always(response(body))) as server:
        answer = await provider(server).chat(call())
        assert answer.body == body and answer.usage == estimated(tokens)


async def test_choices_are_counted_together() -> None:
    pieces = [
        delta(0, content="1234"),
        delta(1, content="567"),
        delta(1, "stop"),
        delta(0, "stop", content="8"),
    ]
    _, usage, _ = await streamed(*pieces, DONE, n=2)
    assert usage == estimated(2)


@pytest.mark.parametrize(
    "told", [None, {}, {"completion_tokens": 0, "prompt_tokens": 0}, {"prompt_tokens": 70}]
)
async def test_usage_without_counts_is_none(told: object) -> None:
    odd = event(json.dumps({"choices": [], "usage": told}).encode())
    _, usage, _ = await streamed(TEXT, END_CHUNK, odd, DONE)
    prompt = 70 if told == {"prompt_tokens": 70} else PROMPT
    assert usage == estimated(2, prompt)


async def cut(*pieces: bytes, **fields: object) -> Usage:
    """The usage of a stream that fails in the middle."""
    async with serving(streaming(*pieces, end=b"")) as server:
        answer = await provider(server).chat(call(stream=True, **fields))
        with pytest.raises(ApiError):
            await collect(answer)
        return answer.usage


async def test_a_cut_stream() -> None:
    assert await cut(TEXT, TEXT) == estimated(4)
    assert await cut(TEXT, USAGE_CHUNK) == TOLD
    assert await cut(TEXT, USAGE_CHUNK, TEXT) == Usage(70, 32, is_estimated=True)
    told = event(piece("abcd", usage={"prompt_tokens": 70, "completion_tokens": 5}))
    assert await cut(told, TEXT) == Usage(70, 7, is_estimated=True)


async def test_an_error_event_in_the_stream() -> None:
    error = event(b'{"error": {"message": "overloaded", "type": "server_error"}}')
    assert await cut(TEXT, error) == estimated(2)
    asked_twice = call(stream=True)
    async with serving(streaming(error)) as server:
        await failure(server, asked_twice)
    assert asked_twice.lost == []  # nothing had begun


async def test_garbage_in_the_stream() -> None:
    assert await cut(TEXT, event(b'{"choices": [{')) == estimated(2)


async def test_a_client_that_leaves() -> None:
    async def endless(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(STREAM_HEAD + chunk(TEXT))
        await seen.reader.read()

    async with serving(endless) as server:
        answer = await provider(server).chat(call(stream=True))
        assert await anext(cast(AsyncIterator[bytes], answer.body)) == TEXT
        await in_deltas(answer).deltas.aclose()  # type: ignore[attr-defined]
        assert await asyncio.wait_for(server.closed.get(), 5) == 1
        assert answer.usage == estimated(2)


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
async def test_a_client_that_leaves_before_the_first_byte(fields: dict[str, object]) -> None:
    arrived = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter, seen: Seen) -> None:
        arrived.set()
        await seen.reader.read()

    async with serving(silent) as server:
        started = call(**fields)
        task = asyncio.create_task(provider(server).chat(started))
        await asyncio.wait_for(arrived.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(server.closed.get(), 5) == 1
    assert started.lost == [estimated(0)]


async def test_an_upstream_that_stays_silent() -> None:
    async def silent(writer: asyncio.StreamWriter, seen: Seen) -> None:
        await seen.reader.read()

    async with serving(silent) as server:
        started = call(stream=True)
        assert (await failure(server, started, first_token_timeout_s=0.05)).status == 504
    assert started.lost == [estimated(0)]


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
async def test_a_refused_call_costs_nothing(status: int) -> None:
    async with serving(always(response(b'{"error": {"message": "no"}}', status))) as server:
        refused = call(stream=True)
        await failure(server, refused)
    assert refused.lost == []


async def test_an_unreachable_upstream_costs_nothing() -> None:
    refused = call()
    with pytest.raises(ApiError):
        await opened(UpstreamModel(base_url="http://127.0.0.1:9/v1")).chat(refused)
    assert refused.lost == []


@pytest.mark.parametrize(("told", "usage"), [(USAGE, TOLD), (None, estimated(2))])
@pytest.mark.parametrize("content", [{"message": {"content": "12345678"}}, {"text": "12345678"}])
async def test_an_answer_with_too_few_choices_is_charged(
    content: dict[str, object], told: object, usage: Usage
) -> None:
    choice = {"index": 0, "finish_reason": "stop", **content}
    async with serving(always(response(json.dumps({"choices": [choice], "usage": told}).encode()))) as server:
        started = call(n=2)
        assert (await failure(server, started)).code == "upstream_wrong_count"
    assert started.lost == [usage]


async def test_a_stream_with_too_few_choices_is_charged_also_without_content() -> None:
    async with serving(streaming(USAGE_CHUNK, END_CHUNK, DONE)) as server:
        started = call(stream=True, n=2)
        assert (await failure(server, started)).code == "upstream_wrong_count"
    assert started.lost == [TOLD]


# Embeddings and rankings


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        (None, estimated(0, 3)),
        ({}, estimated(0, 3)),
        ({"prompt_tokens": 9, "total_tokens": 9}, Usage(9)),
        ({"total_tokens": 9}, Usage(9)),
        ({"total_tokens": -9}, estimated(0, 3)),
        ({"total_tokens": "9"}, estimated(0, 3)),
    ],
)
async def test_embeddings(told: object, usage: Usage) -> None:
    body = json.dumps({"data": [{"embedding": [0.5]}, {"embedding": [1]}], "usage": told}).encode()
    async with serving(always(response(body))) as server:
        answer: Relayed = await provider(server).embed(asked(EmbeddingRequest, input=["12345678", "1"]))
        assert (answer.body, answer.usage) == (body, usage)


async def test_rankings() -> None:
    from gateway.endpoints.rerank.request import RerankRequest

    request = asked(RerankRequest, query="1234", documents=["12345678", {"text": "1234"}])
    for told, usage in (({"total_tokens": 40}, Usage(40)), (None, estimated(0, 4))):
        body = json.dumps({"results": [{"index": 0, "relevance_score": 1}], "usage": told}).encode()
        async with serving(always(response(body))) as server:
            assert (await provider(server).ask("/rerank", request)).usage == usage


async def test_a_stream_in_deltas_has_its_usage_at_its_end() -> None:
    async with serving(streaming(TEXT, END_CHUNK, DONE, end=END)) as server:
        answer = in_deltas(await provider(server).chat(call(stream=True)))
        assert [each.text async for each in answer.deltas] == ["abcdefgh", ""]
        assert answer.usage == estimated(2)


# Other APIs

TRANSLATED: dict[str, Any] = {"anthropic": anthropic, "gemini": gemini, "bedrock": bedrock}
CUT_AFTER_TEXT = {
    "anthropic": (
        b'"text": "Let me see."}}\n\n',
        Usage(22, 1 + 4, 16, 3, cache_write_tokens=2, is_estimated=True),
    ),
    "gemini": (b'"Let me"}', Usage(22, 4 + 2, 16, 3, is_estimated=True)),  # counts grow with the events
    "bedrock": (None, estimated(4)),  # it tells at the end only
}


def events_until_text(api: str) -> bytes:
    whole, (marker, _) = TRANSLATED[api].EVENTS, CUT_AFTER_TEXT[api]
    if marker is None:
        return bytes(whole[: whole.index(bedrock.begin(3, "tool_1", "add"))])
    end = whole.index(marker) + len(marker)
    return bytes(whole[: whole.index(b"\n", end) + 2]) if api == "gemini" else bytes(whole[:end])


def reply_of(api: str, *pieces: bytes, end: bytes = END) -> Script:
    return aws_reply(*pieces, end=end) if api == "bedrock" else streaming(*pieces, end=end)


def provider_of(api: str, server: ScriptedServer) -> Any:  # noqa: ANN401 - each has its own type
    return bedrock.provider(server, KEY) if api == "bedrock" else TRANSLATED[api].provider(server)


@pytest.mark.parametrize("api", TRANSLATED)
async def test_what_an_api_tells_stands(api: str) -> None:
    async with serving(reply_of(api, TRANSLATED[api].EVENTS)) as server:
        async with provider_of(api, server) as found:
            answer = await found.chat(TRANSLATED[api].call(stream=True))
            assert [delta async for delta in answer.deltas]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (22, 9)
        assert not answer.usage.is_estimated


@pytest.mark.parametrize(
    ("api", "last", "first", "completion"),
    [
        ("anthropic", b'"usage": {"output_tokens": 9}', b'"usage": {"output_tokens": 1}', 1),
        ("gemini", b'"candidatesTokenCount": 6', b'"candidatesTokenCount": 1', 4),
    ],
)
async def test_a_last_count_that_equals_the_first_stands(
    api: str, last: bytes, first: bytes, completion: int
) -> None:
    async with serving(reply_of(api, TRANSLATED[api].EVENTS.replace(last, first))) as server:
        async with provider_of(api, server) as found:
            answer = await found.chat(TRANSLATED[api].call(stream=True))
            assert [delta async for delta in answer.deltas]
        written = 2 if api == "anthropic" else 0
        assert answer.usage == Usage(22, completion, 16, 3, cache_write_tokens=written)


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("api", TRANSLATED)
async def test_what_an_api_tells_before_a_cut_is_kept(api: str, *, is_cut: bool) -> None:
    """The upstream breaks off, or the client leaves."""

    async def waiting(writer: asyncio.StreamWriter, seen: Seen) -> None:
        await reply_of(api, events_until_text(api), end=b" ")(writer, seen)
        await seen.reader.read()

    broken = reply_of(api, events_until_text(api), end=b"")
    async with serving(broken if is_cut else waiting) as server:
        async with provider_of(api, server) as found:
            answer = await found.chat(TRANSLATED[api].call(stream=True))
            if is_cut:
                with pytest.raises(ApiError):
                    assert [delta async for delta in answer.deltas]
            else:
                await anext(answer.deltas)
                await close_answer(answer)
            assert await asyncio.wait_for(server.closed.get(), 5) == 1
        assert answer.usage == CUT_AFTER_TEXT[api][1]


@pytest.mark.parametrize("told", [{}, {"usage": {"output_tokens": 0}}, {"usage": None}])
async def test_a_whole_answer_of_an_api_without_usage(told: dict[str, object]) -> None:
    message = {**anthropic.MESSAGE, "usage": {}, **told}
    async with serving(always(response(json.dumps(message).encode()))) as server:
        async with anthropic.provider(server) as found:
            answer = await found.chat(anthropic.call())
        assert answer.usage == estimated(7)


async def test_a_refused_call_of_an_api_costs_nothing() -> None:
    refused = anthropic.call(stream=True)
    script = always(response(b'{"error": {"message": "no"}}', 429))
    async with serving(script) as server, anthropic.provider(server) as found:
        with pytest.raises(ApiError):
            await found.chat(refused)
    assert refused.lost == []

"""The upstream provider against a scripted server: what it sends, passes on, refuses, and never leaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import ApiError
from policies.upstream import UpstreamModel
from tests.gateway.providers.upstream.provider_calls import (
    ANSWER,
    DONE,
    GOOD,
    KEY,
    OPENED,
    TRACE,
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
    Seen,
    always,
    chunk,
    response,
    serving,
)

pytestmark = pytest.mark.usefixtures("transport", "no_secret_in_the_log")


# What goes out


@pytest.mark.parametrize("path", ["/v1", "/openai/v1"])  # OpenAI's, Azure's
@pytest.mark.parametrize("fields", [{}, {"tools": [], "seed": 1}, {"user": "u", "stop": ["a"]}])
async def test_requests_equal_the_official_clients(path: str, fields: dict[str, Any]) -> None:
    answer = {**ANSWER, "object": "chat.completion", "created": 1, "model": "there"}
    async with serving(always(response(json.dumps(answer).encode()))) as server:
        base_url = server.base_url.removesuffix("/v1") + path
        await opened(UpstreamModel(base_url=base_url, model="there"), KEY).chat(call(**fields))
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
            messages: Any = [{"role": "user", "content": "é"}]
            await client.chat.completions.create(model="there", messages=messages, **fields)
        first, second = server.seen
    assert json.loads(first.body) == json.loads(second.body) and first.head == second.head
    assert first.headers["authorization"] == second.headers["authorization"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("chat", "/v1/chat/completions"), ("complete", "/v1/completions"), ("embed", "/v1/embeddings")],
)
async def test_only_the_model_is_replaced_and_only_known_headers_go(
    method: str, path: str, transport: str
) -> None:
    async with serving(always(response(json.dumps(ANSWER).encode()))) as server:
        asked = call(temperature=0.5, unknown_field={"x": [1, None]})
        await getattr(provider(server), method)(asked)
        seen = server.seen[0]
        assert seen.head == f"POST {path} HTTP/1.1"
        assert json.loads(seen.body) == {**asked.body, "model": "there"}
        assert asked.body["model"] == "here"
        assert seen.headers == {
            "host": f"127.0.0.1:{server.port}",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "penstock",
            "authorization": f"bearer {KEY}",
            "accept": "application/json",
            "x-request-id": "req_1",
            "traceparent": TRACE["traceparent"],
            "content-length": str(len(seen.body)),
            **({"connection": "keep-alive"} if transport == "httpx_transport" else {}),
        }


async def test_without_key_no_authorization() -> None:
    async with serving(always(response(json.dumps(ANSWER).encode()))) as server:
        await opened(UpstreamModel(base_url=server.base_url)).chat(call())
        assert "authorization" not in server.seen[0].headers
        assert json.loads(server.seen[0].body)["model"] == "here"


# What comes back


async def test_whole_answer_is_passed_on_byte_by_byte() -> None:
    body = json.dumps(ANSWER, indent=3).encode()
    async with serving(always(response(body))) as server:
        answer = await provider(server).chat(call())
    assert answer.body == body
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 5)
    assert (usage.cached_tokens, usage.reasoning_tokens) == (2, 4)
    assert (answer.finish_reasons, answer.response_id) == (["stop"], "chatcmpl-9")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_details"])
async def test_reasoning_passes_both_ways(name: str) -> None:
    thought = {name: [{"text": "7+5"}] if name == "reasoning_details" else "7+5"}
    usage = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 6}}
    choice = {"index": 0, "finish_reason": None, "delta": {"content": None, **thought}}
    first = event(json.dumps({"id": "c1", "choices": [choice]}).encode())
    last = event(piece("12", "stop", usage=usage))
    messages = [{"role": "assistant", "content": "12", **thought}]
    asked = {"messages": messages, "reasoning_effort": "max", "reasoning": {"exclude": False}}
    whole = json.dumps(
        {"choices": [{"message": messages[0], "finish_reason": "stop"}], "usage": usage}
    ).encode()
    async with serving(streaming(first + last + DONE)) as server:
        answer = await provider(server).chat(call(stream=True, **asked))
        assert await collect(answer) == first + last + DONE
        assert answer.usage.reasoning_tokens == 6
        assert json.loads(server.seen[0].body) == {
            **{"model": "there", "stream": True, "stream_options": {"include_usage": True}},
            **asked,
        }
    async with serving(always(response(whole))) as server:
        answer = await provider(server).chat(call(**asked))
        assert (answer.body, answer.usage.reasoning_tokens) == (whole, 6)


async def test_stream_is_passed_on_and_its_connection_used_again() -> None:
    usage = event(piece("", usage={"prompt_tokens": 7, "completion_tokens": 2}).replace(b'"stop"', b"null"))
    async with serving(streaming(event(piece("a")), event(piece("", "length")), usage, DONE)) as server:
        upstream = provider(server)
        for _ in range(2):
            answer = await upstream.chat(call(stream=True))
            assert await collect(answer) == event(piece("a")) + event(piece("", "length")) + usage + DONE
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 2)
            assert answer.finish_reasons == ["length"]
        assert server.connections == 1
        assert server.seen[0].headers["accept"] == "text/event-stream"
        await upstream.close()


@pytest.mark.parametrize(
    "raw",
    [
        GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.replace(b"\n", b"\r"),
        GOOD.replace(b"data: ", b"data:"),
        b": OPENROUTER PROCESSING\n\n" + GOOD,
        b"\xef\xbb\xbf" + GOOD.replace(b"data: ", b"event: message\nid: 4\ndata: "),
        GOOD.rstrip(b"\n"),
        GOOD.removesuffix(
            DONE
        ),  # some servers never send [DONE]; every choice has ended, so nothing is missing
        GOOD + b": after the end\n\n",
    ],
    ids=["lf", "crlf", "cr", "no space", "comment", "fields", "no last blank line", "no DONE", "surplus"],
)
async def test_dialects_become_one(raw: bytes) -> None:
    async with serving(streaming(raw)) as server:
        assert await collect(await provider(server).chat(call(stream=True))) == GOOD


async def test_every_split_gives_the_same_answer() -> None:
    raw = (b": hi\r\n\r\n" + GOOD.replace(b"\n", b"\r\n"))[:-2]
    for cut in range(1, len(raw), 7):
        async with serving(streaming(raw[:cut], raw[cut:])) as server:
            assert await collect(await provider(server).chat(call(stream=True))) == GOOD


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_an_error_and_nothing_else(garbage: bytes, as_stream: bool) -> None:
    async def ask() -> None:
        good_start = event(piece("a")) if as_stream else b""
        async with serving(streaming(good_start + garbage, end=b"")) as server:
            try:
                await collect(await provider(server).chat(call(stream=as_stream)))
            finally:
                await OPENED.pop().close()

    with pytest.raises(ApiError) as caught:
        asyncio.run(ask())
    assert caught.value.status in {502, 504}


@pytest.mark.parametrize(
    ("pieces", "end", "code"),
    [
        ([event(piece("a"))], END, "upstream_invalid_response"),
        ([event(piece("a"))], b"", "upstream_connection_broken"),
        ([event(piece("a")), b'data: {"choices": [{"de'], END, "upstream_invalid_response"),
        ([event(piece("a")), event(b"<html>")], END, "upstream_invalid_response"),
        ([event(piece("a")), event(b'{"choices": {}}')], END, "upstream_invalid_response"),
        ([event(piece("a")), event(b'{"foo": 1}')], END, "upstream_invalid_response"),
        ([event(piece("a")), event(b'{"error": 17}')], END, "upstream_invalid_response"),
        ([event(piece("a")), event(b'{"error": {"message": "no", "code": "boom"}}')], END, "boom"),
    ],
)
async def test_stream_that_fails_in_the_middle_is_never_a_success(
    pieces: list[bytes], end: bytes, code: str
) -> None:
    async with serving(streaming(*pieces, end=end)) as server:
        answer = await provider(server).chat(call(stream=True))
        received = b""
        with pytest.raises(ApiError) as caught:
            async for data in cast(AsyncIterator[bytes], answer.body):
                received += data
    assert (caught.value.status, caught.value.code) == (502, code)
    assert DONE not in received


@pytest.mark.parametrize(
    "script",
    [
        always(response(b'{"error": {"message": "sorry"}}')),
        always(response(json.dumps(ANSWER).encode())),
        always(response(b"<html>", kind="text/html")),
        streaming(),
        streaming(event(b'{"error": {"message": "sorry"}}')),
    ],
    ids=["error under 200", "whole answer", "html", "empty stream", "error first"],
)
async def test_stream_that_fails_before_its_first_byte_is_a_plain_error(script: Script) -> None:
    async with serving(script) as server:
        error = await failure(server, call(stream=True))
    assert error.status == 502


async def test_choices_must_all_end() -> None:
    choices = [{"index": i, "delta": {"content": "a"}, "finish_reason": None} for i in (0, 1)]
    two = json.dumps({"choices": choices}).encode()
    async with serving(streaming(event(two), event(piece("", "stop")))) as server:
        answer = await provider(server).chat(call(stream=True, n=2))
        with pytest.raises(ApiError, match="before the answer was complete"):
            await collect(answer)


# Errors

EXPLAINED = {"message": f"bad {KEY}", "type": "t", "param": "p", "code": "c"}


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 429, 500, 503])
async def test_explained_errors_keep_status_and_body(status: int) -> None:
    body = json.dumps({"error": EXPLAINED}).encode()
    async with serving(always(response(body, status, retry_after="7"))) as server:
        error = await failure(server)
    assert (error.status, error.message) == (status, "bad ***")
    assert (error.type, error.param, error.code) == ("t", "p", "c")
    assert error.headers == {"retry-after": "7"}


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_key_is_our_problem_and_is_not_shown(status: int) -> None:
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
    async with serving(always(response(body, status))) as server:
        error = await failure(server)
    assert (error.status, error.code) == (502, "upstream_authentication_error")
    assert "canary" not in error.message


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (429, b"slow down", 429),
        (404, b"<html>", 502),
        (500, b"", 502),
        (503, b"busy", 503),
        (504, b"", 504),
        (408, b"", 504),
        (301, b"", 502),
        (204, b"", 502),
        (418, b'{"error": {"message": "teapot"}}', 502),
    ],
)
async def test_unexplained_errors(status: int, body: bytes, expected: int) -> None:
    headers = {} if status == 204 else {"retry_after": "3"}
    async with serving(always(response(body, status, **headers))) as server:
        error = await failure(server)
    assert error.status == expected
    if status in {429, 503}:
        assert error.headers == {"retry-after": "3"}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", b'{"object": "list"}', b'"text"', b"\xff"])
async def test_whole_answer_that_is_none(body: bytes) -> None:
    async with serving(always(response(body))) as server:
        error = await failure(server)
    assert (error.status, error.code) == (502, "upstream_invalid_response")


async def test_connection_refused() -> None:
    async with serving(always()) as server:
        pass
    error = await failure(server)
    assert (error.status, error.code) == (502, "upstream_unreachable")


async def test_connect_limit() -> None:
    upstream = UpstreamModel(base_url="http://127.0.0.1:1/v1", connect_timeout_s=1e-9)
    with pytest.raises(ApiError) as caught:
        await opened(upstream).chat(call())
    assert (caught.value.status, caught.value.code) == (504, "upstream_connect_timeout")


async def _hang(writer: asyncio.StreamWriter, seen: Seen) -> None:
    await seen.reader.read()
    writer.close()


async def _hang_after(data: bytes, writer: asyncio.StreamWriter, seen: Seen) -> None:
    writer.write(data)
    await _hang(writer, seen)


async def test_first_token_limit_before_headers_and_before_the_first_event() -> None:
    for data in (b"", STREAM_HEAD, STREAM_HEAD + chunk(b": still working\n\n")):
        async with serving(lambda writer, seen, data=data: _hang_after(data, writer, seen)) as server:
            error = await failure(server, call(stream=True), first_token_timeout_s=0.1)
            assert (error.status, error.code) == (504, "upstream_first_token_timeout")
            await asyncio.wait_for(server.closed.get(), 5)


async def test_a_role_is_no_first_token() -> None:
    """A server that sends it before it computes the prompt: neither limit may be the other's."""
    role = STREAM_HEAD + chunk(event(piece("")))
    async with serving(lambda writer, seen: _hang_after(role, writer, seen)) as server:
        error = await failure(server, call(stream=True), first_token_timeout_s=0.1)
        assert (error.status, error.code) == (504, "upstream_first_token_timeout")
        await asyncio.wait_for(server.closed.get(), 5)

    async def late(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(role)
        await asyncio.sleep(0.3)  # longer than the idle limit
        writer.write(chunk(event(piece("a"))))
        await _hang(writer, seen)

    async with serving(late) as server:
        answer = await provider(server, first_token_timeout_s=20.0, idle_timeout_s=0.1).chat(
            call(stream=True)
        )
        with pytest.raises(ApiError) as caught:
            await collect(answer)
        assert caught.value.code == "upstream_idle_timeout"


async def test_total_limit_of_a_whole_answer() -> None:
    async with serving(_hang) as server:
        error = await failure(server, total_timeout_s=0.1)
    assert (error.status, error.code) == (504, "upstream_total_timeout")


async def test_a_first_token_limit_that_is_set_bounds_a_whole_answer() -> None:
    async with serving(_hang) as server:
        error = await failure(server, first_token_timeout_s=0.1)
    assert (error.status, error.code) == (504, "upstream_first_token_timeout")


async def test_idle_limit() -> None:
    async with serving(
        lambda writer, seen: _hang_after(STREAM_HEAD + chunk(event(piece("a"))), writer, seen)
    ) as server:
        answer = await provider(server, idle_timeout_s=0.1).chat(call(stream=True))
        with pytest.raises(ApiError) as caught:
            await collect(answer)
        assert (caught.value.status, caught.value.code) == (504, "upstream_idle_timeout")
        await asyncio.wait_for(server.closed.get(), 5)


# Cancellation


async def test_leaving_closes_the_upstream_connection() -> None:
    async with serving(
        lambda writer, seen: _hang_after(STREAM_HEAD + chunk(event(piece("a"))), writer, seen)
    ) as server:
        answer = await provider(server).chat(call(stream=True))
        body = cast(Any, answer.body)
        assert await anext(body) == event(piece("a"))
        await body.aclose()
        await body.aclose()
        await asyncio.wait_for(server.closed.get(), 5)


async def test_cancelling_while_waiting_closes_the_upstream_connection() -> None:
    async with serving(_hang) as server:
        task = asyncio.create_task(provider(server).chat(call(stream=True)))
        while not server.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.closed.get(), 5)


async def test_fields_have_the_names_of_the_service() -> None:
    async with serving(always(response(json.dumps(ANSWER).encode()))) as server:
        upstream = UpstreamModel(service="mistral", base_url=server.base_url, model="there")
        await opened(upstream).chat(call(max_completion_tokens=5, seed=1, temperature=0, user="u"))
    sent = json.loads(server.seen[0].body)
    assert (sent["max_tokens"], sent["random_seed"], sent["temperature"]) == (5, 1, 0)
    assert not {"max_completion_tokens", "seed", "user"} & set(sent)


async def test_fields_of_messages_that_the_service_refuses_are_left_out() -> None:
    answered = {"role": "assistant", "content": "Hi.", "reasoning_content": "hm", "reasoning_details": []}
    messages = [{"role": "user", "content": "é"}, answered, {"role": "user", "content": "And?"}]
    sent = []
    for service in ("groq", "deepseek"):
        async with serving(always(response(json.dumps(ANSWER).encode()))) as server:
            upstream = UpstreamModel(service=service, base_url=server.base_url)  # type: ignore[arg-type]
            await opened(upstream).chat(call(messages=messages))
        sent.append(json.loads(server.seen[0].body)["messages"])
    assert sent == [[messages[0], {"role": "assistant", "content": "Hi."}, messages[2]], messages]


async def test_azure_gets_its_key_in_its_own_header() -> None:
    async with serving(always(response(json.dumps(ANSWER).encode()))) as server:
        upstream = UpstreamModel(base_url=server.base_url, api_key_header="api-key")
        await opened(upstream, KEY).chat(call())
    assert server.seen[0].headers["api-key"] == KEY and "authorization" not in server.seen[0].headers

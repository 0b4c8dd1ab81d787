"""Streams event by event, as OpenAI sends them, and streams that end early."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.answer import Delta, Generated, Relayed, TokenInfo, ToolCallDelta, Usage
from gateway.errors import Unavailable
from gateway.exchange.exchange import Exchange
from gateway.providers.fake import FakeProvider, TextCall
from gateway.settings import Timeouts
from gateway.web.deadlines import Deadlines
from gateway.web.http_call import HttpCall
from tests.gateway.conftest import MakeApp
from tests.gateway.connection import Connection, events

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "ours", "messages": [{"role": "user", "content": "hi"}], "stream": True}
COMPLETION: dict[str, Any] = {"model": "ours", "prompt": "hi", "stream": True}


async def stream(app: Any, path: str, body: dict[str, Any]) -> list[Any]:  # noqa: ANN401
    connection = Connection.post(app, path, body)
    status, headers = await connection.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    return events(await connection.body())


def choice(delta: dict[str, Any], *, index: int = 0, finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


async def test_a_chat_stream(make_app: MakeApp) -> None:
    *chunks, done = await stream(make_app(), CHAT, BODY)
    assert done == "[DONE]"
    assert [chunk["choices"] for chunk in chunks] == [
        [choice({"role": "assistant", "content": "", "refusal": None})],
        [choice({"content": "Hello"})],
        [choice({"content": ", world"})],
        [choice({"content": "!"})],
        [choice({}, finish_reason="stop")],
    ]
    for chunk in chunks:
        assert set(chunk) == {"id", "object", "created", "model", "system_fingerprint", "choices"}
        assert (chunk["object"], chunk["model"]) == ("chat.completion.chunk", "ours")
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_every_choice_has_a_role_first_and_a_reason_last(make_app: MakeApp) -> None:
    *chunks, _ = await stream(make_app(), CHAT, BODY | {"n": 3})
    for index in range(3):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant" and mine[-1]["finish_reason"] == "stop"
        assert "".join(each["delta"].get("content", "") for each in mine) == "Hello, world!"
        assert [each["finish_reason"] for each in mine[:-1]] == [None] * (len(mine) - 1)


@pytest.mark.parametrize(("path", "body"), [(CHAT, BODY), ("/v1/completions", COMPLETION)])
async def test_usage_on_demand(make_app: MakeApp, path: str, body: dict[str, Any]) -> None:
    asked = body | {"stream_options": {"include_usage": True}}
    *chunks, last, done = await stream(make_app(), path, asked)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == [] and last["id"] == chunks[0]["id"]
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_no_usage_unless_asked_for(make_app: MakeApp, options: dict[str, Any] | None) -> None:
    chunks = await stream(make_app(), CHAT, BODY | {"stream_options": options})
    assert all("usage" not in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize(("path", "body"), [(CHAT, BODY), ("/v1/completions", COMPLETION)])
async def test_obfuscation_hides_lengths(make_app: MakeApp, path: str, body: dict[str, Any]) -> None:
    chunks = await stream(make_app(), path, body | {"stream_options": {"include_obfuscation": True}})
    for chunk in chunks[:-1]:
        first = chunk["choices"][0]
        text = first["text"] if "text" in first else first["delta"].get("content", "")
        assert (len(text) + len(chunk["obfuscation"])) % 16 == 0


async def test_a_completion_stream(make_app: MakeApp) -> None:
    *chunks, done = await stream(make_app(), "/v1/completions", COMPLETION)
    assert done == "[DONE]"
    assert [chunk["choices"][0] for chunk in chunks] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": ", world", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "!", "logprobs": None, "finish_reason": "stop"},
    ]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


async def test_logprobs_come_with_their_text(make_app: MakeApp) -> None:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, "", [TokenInfo("\ufffd", b"\xc3", -1.0, [("\ufffd", b"\xc3", -1.0)])])
        yield Delta(0, "é", [TokenInfo("\ufffd", b"\xa9", -2.0, [])], "stop")

    app = make_app(FakeProvider(script))
    chunks = await stream(app, CHAT, BODY | {"logprobs": True})
    contents = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    entry = {"token": "\ufffd", "logprob": -1.0, "bytes": [0xC3]}
    assert contents[1] == {"content": [entry | {"top_logprobs": [entry]}], "refusal": None}
    chunks = await stream(app, "/v1/completions", COMPLETION | {"logprobs": 1})
    assert chunks[0]["choices"][0]["logprobs"]["tokens"] == ["bytes:\\xc3"]
    assert chunks[1]["choices"][0]["logprobs"]["top_logprobs"] == [{"bytes:\\xa9": -2.0}]


async def test_an_error_before_the_first_delta_is_a_status(make_app: MakeApp) -> None:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        raise Unavailable("not now")
        yield Delta(0)

    status, _ = await Connection.post(make_app(FakeProvider(script)), CHAT, BODY).head()
    assert status == 503


@pytest.mark.parametrize("failure", [Unavailable("the engine died"), ValueError("secret")])
async def test_an_error_after_the_first_delta_is_an_event(make_app: MakeApp, failure: Exception) -> None:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, "Hel")
        raise failure

    fake = FakeProvider(script)
    *_, last = await stream(make_app(fake), CHAT, BODY)
    assert set(last) == {"error"} and last["error"]["type"] == "server_error"
    assert "secret" not in str(last)
    assert fake.num_ended == 1


async def stalls(call: TextCall) -> AsyncIterator[Delta]:
    yield Delta(0, "Hel")
    await asyncio.get_running_loop().create_future()


async def test_a_disconnect_ends_the_generation(make_app: MakeApp) -> None:
    fake = FakeProvider(stalls)
    app = make_app(fake)
    connection = Connection.post(app, CHAT, BODY)
    await connection.head()
    await connection.next()
    connection.disconnect()
    await asyncio.wait_for(connection.task, 5)
    assert fake.num_ended == 1
    metrics = Connection(app, "GET", "/metrics")
    await metrics.head()
    text = (await metrics.body()).decode()
    assert 'status="client_closed"} 1.0' in text and 'in_flight{endpoint="chat"} 0.0' in text


async def test_a_disconnect_while_a_write_waits_for_a_slow_reader(make_app: MakeApp) -> None:
    fake = FakeProvider()
    connection = Connection.post(make_app(fake), CHAT, BODY)
    connection.stop_reading()
    while not fake.asked:
        await asyncio.sleep(0)
    connection.disconnect()
    await asyncio.wait_for(connection.task, 5)
    assert fake.num_ended == 1


async def test_an_answer_that_nobody_reads_is_freed_without_the_garbage_collector(make_app: MakeApp) -> None:
    fake = FakeProvider()
    app = make_app(fake)

    def alive() -> list[object]:
        # `type`, not `isinstance`, which asks lazy modules for their class.
        return [each for each in gc.get_objects() if type(each) in (Exchange, HttpCall, Deadlines)]

    gc.collect()
    before = alive()  # held by other tests
    gc.disable()
    try:
        connection = Connection.post(app, CHAT, BODY)
        connection.stop_reading()
        while not fake.asked:
            await asyncio.sleep(0)
        connection.disconnect()
        await asyncio.wait_for(connection.task, 5)
        for _ in range(5):
            await asyncio.sleep(0)
        left = [each for each in alive() if not any(each is known for known in before)]
    finally:
        gc.enable()
    assert left == []


async def test_a_slow_reader_slows_the_generation(make_app: MakeApp) -> None:
    made = 0

    async def script(call: TextCall) -> AsyncIterator[Delta]:
        nonlocal made
        for _ in range(1000):
            made += 1
            yield Delta(0, "x")
        yield Delta(0, finish_reason="stop")

    connection = Connection.post(make_app(FakeProvider(script)), CHAT, BODY)
    connection.stop_reading()
    for _ in range(50):
        await asyncio.sleep(0)
    assert made == 1
    connection.resume_reading()
    await connection.head()
    text = "".join(
        event["choices"][0]["delta"].get("content", "")
        for event in events(await connection.body())
        if event != "[DONE]"
    )
    assert (made, text) == (1000, "x" * 1000)


@pytest.mark.parametrize(
    ("timeouts", "words"),
    [(Timeouts(idle_s=0.05), "gave nothing"), (Timeouts(total_s=0.05), "not complete")],
)
async def test_a_timeout_in_a_stream_is_an_event(make_app: MakeApp, timeouts: Timeouts, words: str) -> None:
    fake = FakeProvider(stalls)
    *_, last = await stream(make_app(fake, timeouts=timeouts), CHAT, BODY)
    assert last["error"]["type"] == "timeout_error" and words in last["error"]["message"]
    assert fake.num_ended == 1


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_late_first_token_is_a_504(make_app: MakeApp, is_stream: bool) -> None:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        await asyncio.get_running_loop().create_future()
        yield Delta(0)

    app = make_app(FakeProvider(script), timeouts=Timeouts(first_token_s=0.05))
    status, _ = await Connection.post(app, CHAT, BODY | {"stream": is_stream}).head()
    assert status == 504


async def test_a_body_that_never_comes_is_a_504(make_app: MakeApp) -> None:
    app = make_app(timeouts=Timeouts(total_s=0.05))
    status, _ = await Connection(app, "POST", CHAT, None).head()
    assert status == 504


class Relaying(FakeProvider):
    """Relays events as an upstream's provider does, and counts the streams that were closed."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails

    async def chat(self, call: TextCall) -> Generated:
        body = self._events() if call.body.get("stream") else b'{"whole":true}'
        return Relayed(body, Usage(1, 2))  # type: ignore[return-value]

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            yield b'data: {"n":1}\n\n'
            if self.fails:
                raise Unavailable("the upstream broke off")
            yield b"data: [DONE]\n\n"
        finally:
            self.num_ended += 1


async def test_relayed_answers_are_sent_unchanged(make_app: MakeApp) -> None:
    provider = Relaying()
    app = make_app(provider)
    assert await stream(app, CHAT, BODY) == [{"n": 1}, "[DONE]"]
    connection = Connection.post(app, CHAT, BODY | {"stream": False})
    await connection.head()
    assert await connection.body() == b'{"whole":true}'
    assert provider.num_ended == 1


async def test_a_relayed_stream_that_breaks_ends_with_an_error(make_app: MakeApp) -> None:
    first, last = await stream(make_app(Relaying(fails=True)), CHAT, BODY)
    assert (first, last["error"]["code"]) == ({"n": 1}, "model_unavailable")


async def test_upstream_models_get_unknown_fields(make_app: MakeApp, fake: FakeProvider) -> None:
    body = BODY | {"model": "theirs", "tools": [{"type": "function"}], "their_own": 1}
    await stream(make_app(), CHAT, body)
    assert fake.asked[0].body == body


async def custom_calls(call: TextCall) -> AsyncIterator[Delta]:
    """Two calls of a custom tool between which is one of a function, and one that is no JSON."""
    yield Delta(0, tool_calls=[ToolCallDelta(0, '{"input": "a\\', "c0", "edit")])
    yield Delta(0, tool_calls=[ToolCallDelta(0, 'n"}'), ToolCallDelta(1, "{}", "c1", "add")])
    yield Delta(0, tool_calls=[ToolCallDelta(2, "as ", "c2", "edit")])
    yield Delta(0, tool_calls=[ToolCallDelta(2, "text")])
    yield Delta(0, finish_reason="tool_calls")


async def test_calls_of_custom_tools(make_app: MakeApp) -> None:
    app = make_app(FakeProvider(custom_calls))
    tools = [
        {"type": "custom", "custom": {"name": "edit"}},
        {"type": "function", "function": {"name": "add"}},
    ]
    *chunks, _ = await stream(app, CHAT, BODY | {"tools": tools})
    pieces = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert pieces == [
        {"index": 0, "id": "c0", "type": "custom", "custom": {"name": "edit", "input": "a"}},
        {"index": 0, "custom": {"input": "\n"}},
        {"index": 1, "id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}},
        {"index": 2, "id": "c2", "type": "custom", "custom": {"name": "edit", "input": ""}},
        {"index": 2, "custom": {"input": "as text"}},
    ]
    connection = Connection.post(app, CHAT, BODY | {"tools": tools, "stream": False})
    await connection.head()
    message = json.loads(await connection.body())["choices"][0]["message"]
    inputs = [call.get("custom", {}).get("input") for call in message["tool_calls"]]
    assert inputs == ["a\n", None, "as text"]

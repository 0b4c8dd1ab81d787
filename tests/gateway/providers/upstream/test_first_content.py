"""An answer begins with its first content: until then the client has seen nothing of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.answer import Delta, ToolCallDelta
from gateway.errors import ApiError
from gateway.providers.upstream.answer_reader import AnswerReader
from gateway.providers.upstream.answer_stream import MAX_HELD_EVENTS
from gateway.providers.upstream.first_content import is_content
from gateway.providers.upstream.redaction import Redactor
from tests.gateway.providers.upstream.provider_calls import (
    DONE,
    call,
    collect,
    event,
    failure,
    piece,
    provider,
    streaming,
)
from tests.gateway.providers.upstream.scripted_server import (
    END,
    STREAM_HEAD,
    Seen,
    chunk,
    serving,
    write_all,
)


def raw(**delta: object) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode()


ROLE = event(raw(role="assistant", content=""))
ERROR = event(b'{"error": {"message": "no", "code": "boom"}}')
REST = event(piece("a")) + event(piece("", "stop")) + DONE


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (raw(role="assistant"), False),
        (raw(role="assistant", content="", refusal=None, tool_calls=[], extra={"a": 1}), False),
        (b'{"choices": [], "usage": {}}', False),
        (b'{"choices": [{"index": 0, "text": ""}]}', False),
        (b'{"choices": [{"index": 0, "text": "a"}]}', True),
        (raw(content="a"), True),
        (raw(content=[{"type": "thinking"}]), True),
        (raw(reasoning_content="a"), True),
        (raw(reasoning="a"), True),
        (raw(tool_calls=[{"index": 0}]), True),
        (raw(function_call={"name": "f"}), True),
        (raw(refusal="a"), True),
        (raw(reasoning_details=[{"type": "reasoning.text"}]), True),
        (raw(audio={"data": "a"}), True),
    ],
)
def test_roles_and_empty_texts_are_no_content(data: bytes, expected: bool) -> None:
    reader = AnswerReader("m", Redactor.of(None, ""), call(stream=True).request, 1, 0)
    reader.take(data)
    assert reader.has_content is expected


def test_a_finish_reason_alone_is_no_content() -> None:
    assert not is_content(Delta(0, finish_reason="stop"))
    assert is_content(Delta(0, "a")) and is_content(Delta(0, reasoning="a"))
    assert is_content(Delta(0, tool_calls=[ToolCallDelta(0)]))


@pytest.mark.parametrize("last", [ERROR, b""], ids=["error", "end"])
async def test_a_stream_that_fails_before_its_content_is_a_plain_error(last: bytes) -> None:
    async with serving(streaming(ROLE, b": ping\n\n", last)) as server:
        assert (await failure(server, call(stream=True))).status == 502


async def test_what_was_held_back_is_sent_unchanged() -> None:
    async with serving(streaming(ROLE, ROLE, REST)) as server:
        assert await collect(await provider(server).chat(call(stream=True))) == ROLE + ROLE + REST


async def test_an_empty_answer_is_complete() -> None:
    empty = event(piece("", "stop")) + DONE
    async with serving(streaming(ROLE, empty)) as server:
        assert await collect(await provider(server).chat(call(stream=True))) == ROLE + empty


async def test_a_bounded_number_of_events_is_held_back() -> None:
    has_begun = asyncio.Event()

    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        await write_all(writer, [STREAM_HEAD, chunk(ROLE * MAX_HELD_EVENTS)])
        await has_begun.wait()
        await write_all(writer, [chunk(ERROR), END])

    async with serving(script) as server:
        answer = await provider(server).chat(call(stream=True))
        has_begun.set()
        with pytest.raises(ApiError, match="no"):
            await collect(answer)
    async with serving(streaming(ROLE * (MAX_HELD_EVENTS - 1), ERROR)) as server:
        assert (await failure(server, call(stream=True))).code == "boom"

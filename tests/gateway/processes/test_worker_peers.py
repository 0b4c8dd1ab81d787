"""The channel between workers: what one knows, all can ask; what is broken, cut, slow or dead is left out."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.processes import worker_peers
from gateway.processes.sockets import BackendSockets
from gateway.processes.worker_peers import Answers, WorkerPeers

PLENTY_S = 60.0
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=9),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=8,
)


@asynccontextmanager
async def workers(
    folder: Path, count: int, limit_s: float = PLENTY_S, dead: tuple[int, ...] = ()
) -> AsyncIterator[list[WorkerPeers]]:
    """Workers with sockets of a supervisor; nothing reads those of the `dead`."""
    sockets = BackendSockets(map(str, range(count)), [folder])
    bound = [sockets.by_name[str(number)] for number in range(count)]
    paths = [each.path for each in bound]
    made = [
        WorkerPeers(number, paths, os.dup(each.listener.fileno()), limit_s)
        for number, each in enumerate(bound)
    ]
    started = [each for each in made if each.number not in dead]
    for each in started:
        each.on("number", lambda argument, number=each.number: {"number": number, "argument": argument})
        await each.start()
    try:
        yield made
    finally:
        for each in started:
            await each.close()
        sockets.close()


async def say(made: WorkerPeers, number: int, data: bytes) -> bytes:
    """What a worker answers to these bytes, which end there."""
    reader, writer = await asyncio.open_unix_connection(made._others[number][0])
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_one_worker_asks_itself() -> None:
    alone = WorkerPeers()
    await alone.start()
    alone.on("x", lambda argument: {"got": argument, "pair": (1, 2)})
    assert await alone.ask_all("x", "a") == Answers({0: {"got": "a", "pair": [1, 2]}})
    assert await alone.ask_all("unknown") == Answers({}, [0])
    await alone.close()


async def test_all_workers_answer_in_order(tmp_path: Path) -> None:
    async with workers(tmp_path, 4) as made:
        for each in made:
            found = await each.ask_all("number", {"a": [1]})
            assert found.by_worker == {n: {"number": n, "argument": {"a": [1]}} for n in range(4)}
            assert list(found.by_worker) == [0, 1, 2, 3] and not found.missing


@settings(max_examples=20, deadline=None)
@given(VALUES)
def test_any_argument_arrives_as_it_is(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    async def run() -> None:
        async with workers(tmp_path_factory.mktemp("p"), 2) as (first, _):
            found = await first.ask_all("number", value)
            assert found.by_worker[1]["argument"] == value == found.by_worker[0]["argument"]

    asyncio.run(run())


async def test_a_dead_worker_is_named_and_others_answer(tmp_path: Path) -> None:
    async with workers(tmp_path, 3, limit_s=0.2, dead=(1,)) as made:
        found = await made[0].ask_all("number")
        assert found.missing == [1] and 0 in found.by_worker


async def test_200_at_once_and_a_dead_worker(tmp_path: Path) -> None:
    async with workers(tmp_path, 3, limit_s=PLENTY_S) as made:
        found = await asyncio.gather(*(made[n % 3].ask_all("number", n) for n in range(200)))
        assert all(not each.missing and len(each.by_worker) == 3 for each in found)
    async with workers(tmp_path, 2, limit_s=0.2, dead=(1,)) as made:
        assert {
            tuple(each.missing)
            for each in await asyncio.gather(*(made[0].ask_all("number") for _ in range(200)))
        } == {(1,)}


async def test_a_worker_answers_after_its_restart(tmp_path: Path) -> None:
    async with workers(tmp_path, 2, limit_s=PLENTY_S, dead=(1,)) as (first, second):
        asking = asyncio.create_task(first.ask_all("number"))
        second.on("number", lambda argument: {"again": True})
        await second.start()
        assert (await asking).by_worker[1] == {"again": True}
        await second.close()


GARBAGE = {
    "nothing": b"",
    "half a length": b"\0\0",
    "a cut message": b"\0\0\0\x10abc",
    "too long": (1 << 30).to_bytes(4, "big") + b"x" * 100,
    "not msgpack": b"\0\0\0\x04\xc1\xc1\xc1\xc1",
    "no question": b"\0\0\0\x01\x80",
    "another type": b"\0\0\0\x01\x01",
    "an unknown question": b"\0\0\0\x07\x81\xa4what\xa1",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_answered_with_nothing_and_ends_nothing(tmp_path: Path, data: bytes) -> None:
    async with workers(tmp_path, 2) as (first, _):
        assert await say(first, 1, data) == b""
        assert not (await first.ask_all("number")).missing


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_end_nothing(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    async def run() -> None:
        async with workers(tmp_path_factory.mktemp("p"), 2) as (first, _):
            await say(first, 1, data)
            assert not (await first.ask_all("number")).missing

    asyncio.run(run())


@asynccontextmanager
async def lying(folder: Path, answer: bytes, *, hangs: bool = False) -> AsyncIterator[WorkerPeers]:
    """The first worker, beside a second one that answers these bytes, and then nothing."""
    path, ended = folder / "liar", asyncio.Event()

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if hangs:
            await ended.wait()
        writer.close()

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    server = await asyncio.start_unix_server(lie, sock=listener)
    first = WorkerPeers(0, ["", str(path)], limit_s=0.2 if hangs else PLENTY_S)
    first.on("x", lambda argument: {})
    yield first
    ended.set()
    server.close()


def framed(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "big") + body


LIES = {
    "nothing": b"",
    "cut": framed({"a": "b"})[:-1],
    "huge": b"\xff\xff\xff\xff",
    "a list": framed([1]),
    "keys that are numbers": framed({1: 2}),
    "not msgpack": b"\0\0\0\1\xc1",
    "no text": b"\0\0\0\4\x81\xa1\xff\x01",
    "nested": (5001).to_bytes(4, "big") + b"\x91" * 5000 + b"\x01",
}


@pytest.mark.parametrize("answer", LIES.values(), ids=LIES)
async def test_an_answer_that_is_none_counts_as_missing(tmp_path: Path, answer: bytes) -> None:
    async with lying(tmp_path, answer) as first:
        assert await first.ask_all("x") == Answers({0: {}}, [1])


@pytest.mark.parametrize("answer", [b"", b"\0\0", framed({"a": 1})[:-1]], ids=["silent", "cut", "slow"])
async def test_a_worker_that_hangs_is_left_out(tmp_path: Path, answer: bytes) -> None:
    async with lying(tmp_path, answer, hangs=True) as first:
        assert await first.ask_all("x") == Answers({0: {}}, [1])


async def test_a_handler_that_fails_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(argument: object) -> dict[str, object]:
        raise ValueError("canary")

    async with workers(tmp_path, 2) as (first, second):
        second.on("number", fail)
        assert (await first.ask_all("number")).missing == [1]
    assert "ValueError" in caplog.text and "canary" not in caplog.text


async def test_too_long_an_answer_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with workers(tmp_path, 2) as (first, second):
        second.on("long", lambda argument: {"a": "b" * 101})
        question = framed({"what": "long"})
        assert len(await say(first, 1, question)) > 100
        monkeypatch.setattr(worker_peers, "MAX_ANSWER_BYTES", 100)
        assert await say(first, 1, question) == b""


async def test_too_long_a_message_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with workers(tmp_path, 2) as (first, _):
        long_question = framed({"what": "number", "argument": "a" * 101})
        assert await say(first, 1, long_question)
        monkeypatch.setattr(worker_peers, "MAX_QUESTION_BYTES", 100)
        assert await say(first, 1, long_question) == b""
    async with lying(tmp_path, framed({"a": "b" * 101})) as first:
        assert not (await first.ask_all("x")).missing
        monkeypatch.setattr(worker_peers, "MAX_ANSWER_BYTES", 100)
        assert (await first.ask_all("x")).missing == [1]

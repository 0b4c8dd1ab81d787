"""Questions of one gateway worker to all of them, for what only the one that serves a request knows.

Each listens on a Unix socket that the supervisor binds once (see sockets.py). A connection carries one
question and one answer, each a 4-byte length and a map in msgpack.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

logger = logging.getLogger(__name__)

ANSWER_WITHIN_S = 1.0
"""A worker that needs longer is left out: it has died, or its event loop is stuck."""
MAX_QUESTION_BYTES = 1 << 16
MAX_ANSWER_BYTES = 1 << 24
MAX_AT_ONCE = 16
"""Questions under way to one worker: fewer than its socket's backlog."""
_LENGTH_BYTES = 4

Handler = Callable[[Any], dict[str, Any]]


class Question(msgspec.Struct, frozen=True):
    """What one worker asks another."""

    what: str
    argument: Any = None


_QUESTIONS = msgspec.msgpack.Decoder(Question)
_ANSWERS = msgspec.msgpack.Decoder(dict[str, Any])


@dataclass(slots=True)
class Answers:
    """What the workers have said."""

    by_worker: dict[int, dict[str, Any]]  # by number
    missing: list[int] = field(default_factory=list)  # those that have not answered in time, or not well


class WorkerPeers:
    """A worker's end. Handlers run in the event loop and must not take long; nothing of them is in a log."""

    def __init__(
        self,
        number: int = 0,
        paths: Sequence[str] = (),
        listen_fd: int | None = None,
        limit_s: float = ANSWER_WITHIN_S,
    ) -> None:
        """`paths`: of all workers, by number; none where this is the only one."""
        self.number = number
        self._listen_fd = listen_fd
        self._limit_s = limit_s
        self._others = {
            each: (path, asyncio.Semaphore(MAX_AT_ONCE)) for each, path in enumerate(paths) if each != number
        }
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None

    def on(self, what: str, handler: Handler) -> None:
        """Have questions named `what` answered by `handler(argument)`: a map of what msgpack knows."""
        self._handlers[what] = handler

    async def start(self) -> None:
        """Answer the others from now on."""
        if self._listen_fd is not None:
            listener = socket.socket(fileno=self._listen_fd)
            self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def close(self) -> None:
        """Answer nothing more."""
        if self._server is not None:
            self._server.close()

    async def ask_all(self, what: str, argument: object = None) -> Answers:
        """The answers of all workers, this one's included, after a second at most."""
        question = msgspec.msgpack.encode(Question(what, argument))
        numbers = [*self._others]
        found = dict(
            zip(numbers, await asyncio.gather(*(self._ask(n, question) for n in numbers)), strict=True)
        )
        found[self.number] = self._answer(question)
        answers = Answers({})
        for number, body in sorted(found.items()):
            try:
                answers.by_worker[number] = _ANSWERS.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                answers.missing.append(number)
        return answers

    async def _ask(self, number: int, question: bytes) -> bytes:
        """Another worker's answer; b"" where there is none."""
        path, at_once = self._others[number]
        try:
            async with asyncio.timeout(self._limit_s), at_once:
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(_frame(question))
                    return await _read(reader, MAX_ANSWER_BYTES)
                finally:
                    writer.transport.abort()
        except (OSError, EOFError):  # a TimeoutError is an OSError
            return b""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                answer = self._answer(await _read(reader, MAX_QUESTION_BYTES))
                if answer:
                    writer.write(_frame(answer))
                    await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    def _answer(self, body: bytes) -> bytes:
        """What the handler says, encoded; b"" for a question that has no answer."""
        try:
            question = _QUESTIONS.decode(body)
            handler = self._handlers.get(question.what)
            answer = b"" if handler is None else msgspec.msgpack.encode(handler(question.argument))
        except Exception as failure:  # noqa: BLE001 - one question must not end the worker
            logger.error("a question of another worker failed with %s", type(failure).__name__)
            return b""
        return answer if len(answer) <= MAX_ANSWER_BYTES else b""


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def _read(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """One message. Raises EOFError for one that is cut, OSError for one that is too long."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > max_bytes:
        raise OSError(f"a message of {length} bytes exceeds {max_bytes}")
    return await reader.readexactly(length)

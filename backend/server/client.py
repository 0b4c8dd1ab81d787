"""The gateway's end of a connection to an engine or encoder process: kept up, with heartbeats. asyncio.

EngineClient and EncoderClient add what can be asked of their process. No torch here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar, cast

import msgspec

from backend.errors import EngineError, EngineUnavailable, FrameError
from backend.server.wire import FrameReader, encode_message

HEARTBEAT_LIMIT_S = 5.0
"""A process whose last message is older is not ready, unless its steps are known to take longer."""

_HEARTBEAT_CEILING_S = 60.0
_GAP_HALF_LIFE_S = 60.0
"""Decay of the longest gap between messages: one slow step must not excuse a hang forever."""

_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 0.25

Incoming = TypeVar("Incoming")
Greeting = TypeVar("Greeting")
Answer = TypeVar("Answer")


class ProcessClient(ABC, Generic[Incoming, Greeting]):
    """A connection to the process that listens on `socket_path`; survives its restarts."""

    def __init__(
        self, socket_path: str | Path, kind: str, decoder: msgspec.msgpack.Decoder[Incoming]
    ) -> None:
        """`kind`, for messages: "engine" or "encoder"."""
        self.hello: Greeting | None = None  # the process's first message; None while not connected
        self._socket_path = str(socket_path)
        self._kind = kind
        self._decoder = decoder
        self._connection: _Connection[Incoming] | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._last_message_s = 0.0
        self._longest_gap_s = 0.0
        self._has_beaten = False  # a heartbeat has come on this connection

    @abstractmethod
    def _receive(self, message: Incoming) -> None:
        """Handle one message: set `hello`, and `_has_beaten` at a heartbeat."""

    @abstractmethod
    def _fail_pending(self, new_error: Callable[[], EngineUnavailable]) -> None:
        """The connection is gone: raise an error wherever an answer is awaited."""

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the process's loop was last heard of; infinite when not connected."""
        return float("inf") if self.hello is None else time.monotonic() - self._last_message_s

    @property
    def ready(self) -> bool:
        """Whether the process is connected, has sent its greeting, and its loop is running."""
        limit_s = min(max(HEARTBEAT_LIMIT_S, 3 * self._longest_gap_s), _HEARTBEAT_CEILING_S)
        return self._has_beaten and self.heartbeat_age_s < limit_s

    async def start(self) -> None:
        """Start to connect, and reconnect whenever the process goes away. Returns at once."""
        if self._task is None:
            self._task = asyncio.create_task(
                self._keep_connected(), name=f"{self._kind}-client {self._socket_path}"
            )

    async def close(self) -> None:
        """End the connection; pending requests raise EngineUnavailable."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._disconnect()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once `ready`. Raises EngineUnavailable after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    await self.wait_message()
        except TimeoutError:
            raise self._unavailable(f"did not answer within {timeout_s:g} s") from None

    async def wait_message(self) -> None:
        """Return after the next message from the process."""
        self._changed.clear()
        await self._changed.wait()

    def deliver(self, message: Incoming) -> None:
        """Take one message from the process, and note the time."""
        now_s = time.monotonic()
        if self.hello is not None:
            gap_s = now_s - self._last_message_s
            self._longest_gap_s = max(gap_s, self._longest_gap_s * 0.5 ** (gap_s / _GAP_HALF_LIFE_S))
        self._last_message_s = now_s
        self._receive(message)
        self._changed.set()

    def _check_connected(self) -> None:
        if self._connection is None or self.hello is None:
            raise self._unavailable("is not connected")

    def _send(self, message: msgspec.Struct) -> None:
        """Send a message; drops it when not connected. Raises FrameError when it is too large."""
        frame = encode_message(message)
        if self._connection is not None:
            self._connection.write(frame)

    def _unavailable(self, what: str) -> EngineUnavailable:
        return EngineUnavailable(
            f"the {self._kind} at {self._socket_path!r} {what}; it is starting, restarting or hung"
        )

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                _, self._connection = await loop.create_unix_connection(
                    lambda: _Connection(self._decoder, self.deliver), self._socket_path
                )
            except OSError:  # no socket yet, or none listens on it
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)
                continue
            delay_s = _FIRST_RETRY_S
            try:
                await self._connection.closed
            finally:
                self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self.hello = None
        self._has_beaten = False
        self._longest_gap_s = 0.0
        self._fail_pending(lambda: self._unavailable("closed the connection"))


class PendingCalls(Generic[Answer]):
    """Calls to a process that wait for their answer, by the id that the answer carries."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Answer]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    async def answer(self, call_id: str) -> Answer:
        """The answer to a call that was just sent. Raises the EngineError of `settle` or `fail_all`."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._futures[call_id] = future
        try:
            return await future
        finally:
            del self._futures[call_id]

    def settle(self, call_id: str, result: Answer | EngineError) -> None:
        """An answer has come; ignored if its call was cancelled."""
        future = self._futures.get(call_id)
        if future is None or future.done():
            return
        if isinstance(result, EngineError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def fail_all(self, new_error: Callable[[], EngineError]) -> None:
        """No answer will come any more."""
        for call_id in self._futures:
            self.settle(call_id, new_error())


class _Connection(asyncio.Protocol, Generic[Incoming]):
    """Decodes frames and hands the messages on."""

    def __init__(
        self, decoder: msgspec.msgpack.Decoder[Incoming], on_message: Callable[[Incoming], None]
    ) -> None:
        self._decoder = decoder
        self._on_message = on_message
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. Bytes that are no message end the connection."""
        try:
            for body in self._reader.feed(data):
                self._on_message(self._decoder.decode(body))
        except (FrameError, msgspec.MsgspecError):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        if not self.closed.done():
            self.closed.set_result(None)

    def write(self, frame: bytes) -> None:
        """Queue a frame; does not wait."""
        if self._transport is not None:
            self._transport.write(frame)

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

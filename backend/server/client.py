"""The gateway's end of a connection to an engine or encoder process: kept up, with heartbeats. asyncio.

EngineClient and EncoderClient add what can be asked of their process. No torch here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, cast

import msgspec

from backend.errors import EngineError, EngineUnavailable, FrameError
from backend.server.endpoints import GREETING_LIMIT_S, Endpoint, RemoteEndpoint, UnixEndpoint
from backend.server.wire import FrameReader, encode_message

logger = logging.getLogger(__name__)

HEARTBEAT_LIMIT_S = 5.0
"""A process whose last message is older is not ready, unless its steps are known to take longer."""

_HEARTBEAT_CEILING_S = 60.0
_GAP_HALF_LIFE_S = 60.0
"""Decay of the longest gap between messages: one slow step must not excuse a hang forever."""

_FIRST_RETRY_S = 0.05
_SILENCE_FACTOR = 2
"""A remote process that is silent for this multiple of the limit of `ready` counts as lost."""
_WATCH_S = 0.5

Incoming = TypeVar("Incoming")
Greeting = TypeVar("Greeting")
Answer = TypeVar("Answer")


class Refusal(NamedTuple):
    """Why a process that answers is not asked: its greeting does not fit."""

    reason: str  # one of a few, for metrics
    message: str


class ProcessClient(ABC, Generic[Incoming, Greeting]):
    """A connection to the process that listens at `place`; survives its restarts."""

    def __init__(
        self, place: Endpoint | str | Path, kind: str, decoder: msgspec.msgpack.Decoder[Incoming]
    ) -> None:
        """`place`: an endpoint, or a Unix socket's path. `kind`, for messages: "engine" or "encoder"."""
        self.hello: Greeting | None = None  # the process's first message; None while not connected
        self.num_waiters = 0  # who wait for it to be ready
        self.fault = ""  # why a remote process cannot be reached
        self.refusal: Refusal | None = None  # why a connected one is not asked
        self.on_lost: Callable[[], None] = lambda: None  # called when a connection has ended
        self._endpoint = UnixEndpoint(str(place)) if isinstance(place, str | Path) else place
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
        is_heard = self._has_beaten and self.heartbeat_age_s < self._heartbeat_limit_s
        return is_heard and self.refusal is None

    @property
    def is_away(self) -> bool:
        """Whether it is known that a remote process cannot be used now."""
        return bool(self.fault or self.refusal)

    @property
    def place(self) -> str:
        """Where it listens, for messages."""
        return str(self._endpoint)

    @property
    def is_remote(self) -> bool:
        """Whether nothing on this machine watches the process."""
        return isinstance(self._endpoint, RemoteEndpoint)

    @property
    def host(self) -> str:
        """The machine of a remote process; "" of one on this machine."""
        return self._endpoint.host if isinstance(self._endpoint, RemoteEndpoint) else ""

    @property
    def _heartbeat_limit_s(self) -> float:
        return min(max(HEARTBEAT_LIMIT_S, 3 * self._longest_gap_s), _HEARTBEAT_CEILING_S)

    async def start(self) -> None:
        """Start to connect, and reconnect whenever the process goes away. Returns at once."""
        if self._task is None:
            self._task = asyncio.create_task(
                self._keep_connected(), name=f"{self._kind}-client {self._endpoint}"
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
        self.num_waiters += 1
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    await self.wait_message()
        except TimeoutError:
            raise self._unavailable(f"did not answer within {timeout_s:g} s") from None
        finally:
            self.num_waiters -= 1

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
        if self.fault and self._has_beaten:
            self.fault = ""
            logger.info("the %s at %s answers", self._kind, self._endpoint)
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
            f"the {self._kind} at {str(self._endpoint)!r} {what}; it is starting, restarting or hung"
        )

    async def _keep_connected(self) -> None:
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                connection = await self._endpoint.connect(self._new_connection)
            except OSError as error:  # none listens there, or another kind of peer
                self._connection = None
                self._note(f"cannot be reached: {str(error) or type(error).__name__}")
            else:
                lost = "closed the connection"
                try:
                    lost = await self._until_lost(connection)
                finally:
                    was_ready = self._has_beaten
                    self._disconnect()
                self._note(lost)
                if was_ready:
                    delay_s = _FIRST_RETRY_S
                    continue
            await asyncio.sleep(delay_s * random.uniform(0.75, 1.0))
            delay_s = min(2 * delay_s, self._endpoint.last_retry_s)

    def _new_connection(self) -> _Connection[Incoming]:
        """Known here before its first message: that may want an answer."""
        self._connection = _Connection(self._decoder, self.deliver)
        return self._connection

    async def _until_lost(self, connection: _Connection[Incoming]) -> str:
        """Return why a connection cannot be used any more. A local process is watched by its supervisor."""
        if not self.is_remote:
            await connection.closed
            return ""
        greeted_by_s = time.monotonic() + GREETING_LIMIT_S
        while True:
            await asyncio.wait([connection.closed], timeout=_WATCH_S)
            if connection.closed.done():
                return connection.fault or "closed the connection"
            if self.hello is None and time.monotonic() >= greeted_by_s:
                return f"said nothing for {GREETING_LIMIT_S:g} s"
            limit_s = _SILENCE_FACTOR * self._heartbeat_limit_s
            if self.hello is not None and self.heartbeat_age_s >= limit_s:
                return f"sent no heartbeat for {limit_s:.0f} s"

    def _note(self, fault: str) -> None:
        """Log why a remote process cannot be used, once for each reason."""
        if self.is_remote and fault != self.fault:
            self.fault = fault
            logger.warning("the %s at %s %s", self._kind, self._endpoint, fault)

    def _leave(self, fault: str) -> None:
        """End the connection for this reason."""
        if self._connection is not None:
            self._connection.fault = fault
            self._connection.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self.hello = None
        self._has_beaten = False
        self.refusal = None
        self._longest_gap_s = 0.0
        self._fail_pending(lambda: self._unavailable("closed the connection"))
        self.on_lost()


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
        self.fault = ""  # why it has ended
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. Bytes that are no message end the connection."""
        try:
            for body in self._reader.feed(data):
                self._on_message(self._decoder.decode(body))
        except (FrameError, msgspec.MsgspecError) as error:
            self.fault = f"sent a malformed frame: {error}"
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.fault = self.fault or ("" if exc is None else f"closed the connection: {exc}")
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

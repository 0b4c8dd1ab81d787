"""EngineClient: how the gateway reaches one engine process. asyncio; one connection, kept up.

The only door to the engine: requests go in, each comes back as a stream of StepOutput. No torch here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import cast

import msgspec

from backend.errors import (
    AdapterError,
    AdapterExists,
    AdapterGone,
    EngineError,
    EngineUnavailable,
    FrameError,
    PromptTooLong,
    QueueFull,
    RequestError,
)
from backend.lora.info import AdapterInfo
from backend.server.framing import FrameReader, encode_frame
from backend.server.messages import (
    AdapterResult,
    Adapters,
    Cancel,
    EngineStats,
    FromEngine,
    Heartbeat,
    Hello,
    LoadAdapter,
    Outputs,
    Rejected,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from backend.types import Request, StepOutput

HEARTBEAT_LIMIT_S = 5.0
"""An engine whose last heartbeat is older is not ready, unless its steps are known to take long."""

_HEARTBEAT_CEILING_S = 60.0
_GAP_HALF_LIFE_S = 60.0
"""So fast a long silence is forgotten, that a hung engine is not taken for a slow one for ever."""

_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 0.25


class RequestStream(AsyncIterator[StepOutput]):
    """What the engine answers to one request; ends after the output that carries a finish_reason.

    A slow reader costs no queue: outputs that it has not taken are merged into one. Raises QueueFull,
    PromptTooLong or RequestError when it was not admitted, EngineUnavailable when the engine is lost.
    Cancelling the task that reads cancels the request.
    """

    def __init__(self, client: EngineClient, wire_id: str, request_id: str) -> None:
        self.request_id = request_id
        self._client = client
        self._wire_id = wire_id
        self._pending: StepOutput | None = None
        self._error: EngineError | None = None
        self._is_closed = False  # nothing more will arrive
        self._waiter: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """Stop the request; the engine frees its memory before its next step. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._client._forget(self._wire_id)
            self._wake()

    async def __anext__(self) -> StepOutput:
        """The next output, waiting for one; StopAsyncIteration at the end."""
        while self._pending is None:
            if self._error is not None:
                raise self._error
            if self._is_closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self._waiter = None
        output, self._pending = self._pending, None
        return output

    def _push(self, output: StepOutput) -> None:
        output.request_id = self.request_id
        self._pending = output if self._pending is None else _merge(self._pending, output)
        self._is_closed = output.finish_reason is not None
        self._wake()

    def _fail(self, error: EngineError) -> None:
        self._error = error
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient:
    """A connection to the engine that listens on `socket_path`; survives its restarts."""

    def __init__(self, socket_path: str | Path) -> None:
        self._socket_path = str(socket_path)
        self._streams: dict[str, RequestStream] = {}
        self._numbers = itertools.count()
        self._encoder = msgspec.msgpack.Encoder()
        self._connection: _Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._last_frame_s = 0.0
        self._longest_gap_s = 0.0
        self._has_beaten = False
        self.hello: Hello | None = None
        self.stats = EngineStats()
        self.adapters: dict[str, AdapterInfo] = {}  # what can be asked for, by name
        self._adapters_told: frozenset[str] | None = None  # their names, kept while the engine is away
        self._lost_adapters: frozenset[str] = frozenset()
        self.on_adapters: Callable[[Adapters], None] | None = None  # called when they change
        self._adapter_calls: dict[str, asyncio.Future[AdapterInfo]] = {}

    @property
    def adapter_names(self) -> AbstractSet[str]:
        """Of all adapters that it has, had when it was last heard of, or lost when it started again."""
        return self.adapters.keys() | (self._adapters_told or frozenset()) | self._lost_adapters

    def has_adapter(self, name: str) -> bool:
        """Whether it can be asked for, as far as the engine has said; True before its first word."""
        return self._adapters_told is None or name in self._adapters_told

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the engine's loop was last heard of; infinite when not connected."""
        return float("inf") if self.hello is None else time.monotonic() - self._last_frame_s

    @property
    def ready(self) -> bool:
        """Connected, greeted, and the engine's step loop turns."""
        limit_s = min(max(HEARTBEAT_LIMIT_S, 3 * self._longest_gap_s), _HEARTBEAT_CEILING_S)
        return self._has_beaten and self.heartbeat_age_s < limit_s

    async def start(self) -> None:
        """Begin to connect, and to connect again whenever the engine goes away. Returns at once."""
        if self._task is None:
            self._task = asyncio.create_task(
                self._keep_connected(), name=f"engine-client {self._socket_path}"
            )

    async def close(self) -> None:
        """End the connection; open streams raise EngineUnavailable."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._connection is not None:
            self._connection.close()
        self._drop()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once `ready`. Raises EngineUnavailable when that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise self._unavailable(f"did not answer within {timeout_s:g} s") from None

    def submit(self, requests: list[Request]) -> list[RequestStream]:
        """Send requests together: all are admitted or none. Raises EngineUnavailable when not connected.

        Request ids need not be unique. Refusals surface when a stream is read.
        """
        if self._connection is None or self.hello is None:
            raise self._unavailable("is not connected")
        renamed: list[Request] = []
        streams: list[RequestStream] = []
        for request in requests:
            wire_id = f"{request.request_id}#{next(self._numbers)}"
            renamed.append(msgspec.structs.replace(request, request_id=wire_id))
            streams.append(RequestStream(self, wire_id, request.request_id))
        frame = encode_frame(self._encoder.encode(Submit(renamed)))
        for request, stream in zip(renamed, streams, strict=True):
            self._streams[request.request_id] = stream
        self._connection.write(frame)
        return streams

    async def load_adapter(self, name: str, path: str, *, replaces: bool = True) -> AdapterInfo:
        """Serve the adapter in this folder under this name. Raises AdapterError or EngineUnavailable.

        Without `replaces` a name that an adapter has already raises AdapterExists.
        """
        call_id = str(next(self._numbers))
        return await self._call(call_id, LoadAdapter(call_id, name, path, replaces))

    async def unload_adapter(self, name: str) -> AdapterInfo:
        """Serve it no longer; requests under way finish. Raises AdapterError or EngineUnavailable."""
        call_id = str(next(self._numbers))
        return await self._call(call_id, UnloadAdapter(call_id, name))

    async def _call(self, call_id: str, message: ToEngine) -> AdapterInfo:
        if self._connection is None or self.hello is None:
            raise self._unavailable("is not connected")
        answer: asyncio.Future[AdapterInfo] = asyncio.get_running_loop().create_future()
        self._adapter_calls[call_id] = answer
        self._send(message)
        try:
            return await answer
        finally:
            self._adapter_calls.pop(call_id, None)

    def _unavailable(self, what: str) -> EngineUnavailable:
        return EngineUnavailable(
            f"the engine at {self._socket_path!r} {what}; it is starting, restarting or hung"
        )

    def _forget(self, wire_id: str) -> None:
        """Cancel on the engine's side."""
        if self._streams.pop(wire_id, None) is not None:
            self._send(Cancel([wire_id]))

    def _send(self, message: ToEngine) -> None:
        if self._connection is not None:
            self._connection.write(encode_frame(self._encoder.encode(message)))

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                _, connection = await loop.create_unix_connection(
                    lambda: _Connection(self), self._socket_path
                )
            except OSError:  # no socket yet, or nobody listens
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)
                continue
            delay_s = _FIRST_RETRY_S
            self._connection = connection
            try:
                await connection.closed
            finally:
                connection.close()
                self._drop()

    def _drop(self) -> None:
        """The connection is gone: whoever waits must know."""
        self._connection = None
        self.hello = None
        self._has_beaten = False
        self._longest_gap_s = 0.0
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream._fail(self._unavailable("closed the connection"))
        self.adapters = {}
        for answer in self._adapter_calls.values():
            if not answer.done():
                answer.set_exception(self._unavailable("closed the connection"))

    def _receive(self, message: FromEngine) -> None:
        now_s = time.monotonic()
        if self.hello is not None:
            gap_s = now_s - self._last_frame_s
            self._longest_gap_s = max(gap_s, self._longest_gap_s * 0.5 ** (gap_s / _GAP_HALF_LIFE_S))
        self._last_frame_s = now_s
        match message:
            case Outputs():
                for output in message.outputs:
                    self._dispatch(output)
            case Heartbeat():
                self.stats = message.stats
                self._has_beaten = True
            case Rejected():
                stream = self._streams.pop(message.request_id, None)
                if stream is not None:
                    stream._fail(_refusal(message))
            case Hello():
                self.hello = message
            case Adapters():
                self._learn(message)
            case AdapterResult():
                self._settle(message)
        self._changed.set()

    def _learn(self, message: Adapters) -> None:
        self.adapters = {info.name: info for info in message.adapters}
        self._adapters_told = frozenset(self.adapters)
        self._lost_adapters = frozenset(message.lost)
        if self.on_adapters is not None:
            self.on_adapters(message)

    def _settle(self, message: AdapterResult) -> None:
        answer = self._adapter_calls.get(message.call_id)
        if answer is None or answer.done():  # whoever asked has gone
            return
        if message.info is None:
            kind = AdapterExists if message.exists else AdapterError
            answer.set_exception(kind(message.error))
        else:
            answer.set_result(message.info)

    def _dispatch(self, output: StepOutput) -> None:
        wire_id = output.request_id
        stream = self._streams.get(wire_id)
        if stream is None:  # cancelled while this was on its way
            return
        if output.finish_reason is not None:
            del self._streams[wire_id]
        stream._push(output)


class _Connection(asyncio.Protocol):
    """Bytes in and out; decodes frames and hands messages to the client."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._reader = FrameReader()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no instance of it

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. Bytes that are no message end the connection."""
        try:
            for body in self._reader.feed(data):
                self._client._receive(self._decoder.decode(body))
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
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()


def _merge(first: StepOutput, second: StepOutput) -> StepOutput:
    """Both outputs as one; changes and returns `first`."""
    first.token_ids += second.token_ids
    if second.logprobs is not None:
        first.logprobs = (first.logprobs or []) + second.logprobs
    first.prompt_logprobs = first.prompt_logprobs or second.prompt_logprobs
    first.finish_reason = second.finish_reason
    first.stop_token_id = second.stop_token_id
    first.error = second.error
    first.error_param = second.error_param
    first.num_cached_tokens = max(first.num_cached_tokens, second.num_cached_tokens)
    first.num_drafted += second.num_drafted
    first.num_accepted += second.num_accepted
    first.num_predicted += second.num_predicted
    first.num_predicted_accepted += second.num_predicted_accepted
    return first


def _refusal(message: Rejected) -> EngineError:
    if message.kind == "queue_full":
        return QueueFull(message.message, message.retry_after_s)
    if message.kind == "prompt_too_long":
        return PromptTooLong(message.message, message.param)
    if message.kind == "adapter_gone":
        return AdapterGone(message.message, message.param)
    return RequestError(message.message, message.param)

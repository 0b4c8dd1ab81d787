"""EngineClient: the gateway's only way to an engine process. Requests in, streams of StepOutput out."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from backend.errors import EngineError, EngineUnavailable, HandedBack
from backend.lora.info import AdapterInfo
from backend.server.client import PendingCalls, ProcessClient, Refusal
from backend.server.endpoints import Endpoint, RemoteEndpoint
from backend.server.engine_messages import (
    AdapterDone,
    Adapters,
    CachedPages,
    Cancel,
    Drain,
    Draining,
    EngineStats,
    FromEngine,
    Heartbeat,
    Hello,
    LoadAdapter,
    Outputs,
    Returned,
    Submit,
    UnloadAdapter,
)
from backend.server.quote import PageIndex, PublishedPages
from backend.server.token_proof import Challenge, TurnedAway, prove
from backend.server.wire import Rejected
from backend.types import Request, RequestTrace, StepOutput

logger = logging.getLogger(__name__)

MAX_CANCELLED = 1024
"""Cancelled sequences of one engine whose traces are waited for."""


class RequestStream(AsyncIterator[StepOutput]):
    """The outputs of one request; ends after the output that carries a finish_reason.

    Memory is bounded for slow readers: outputs that were not taken yet are merged into one. Raises the
    RequestError or QueueFull with which the request was rejected, and EngineUnavailable when the engine is
    lost. Cancelling the task that reads cancels the request.
    """

    def __init__(self, request_id: str, on_cancel: Callable[[], None]) -> None:
        self.request_id = request_id
        self.has_begun = False  # the engine computes it, or has
        self.machine_s = 0.0  # the engine has worked for it so far
        self.on_trace: Callable[[RequestTrace | None], None] | None = None  # with None: it will not come
        self._on_cancel = on_cancel
        self._pending: StepOutput | None = None
        self._error: EngineError | None = None
        self._is_closed = False  # nothing more will arrive
        self._waiter: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """Stop the request; the engine frees its memory before its next step. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._on_cancel()
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

    def push(self, output: StepOutput) -> None:
        """Add an output from the engine. One without tokens says that the request has begun."""
        self.has_begun = True
        self.machine_s = output.machine_s
        if not output.token_ids and output.finish_reason is None:
            return
        output.request_id = self.request_id
        self._pending = output if self._pending is None else _merge(self._pending, output)
        if output.finish_reason is not None:
            self._is_closed = True
            self.settle_trace(output.trace)
        self._wake()

    def settle_trace(self, trace: RequestTrace | None) -> None:
        """Hand on what the engine has traced: it comes with the last output, also after a cancel."""
        if self.on_trace is not None:
            self.on_trace(trace)

    def fail(self, error: EngineError) -> None:
        """End the stream with an error, after the outputs that came before."""
        self._error = error
        self._is_closed = True
        self.settle_trace(None)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient(ProcessClient[FromEngine, Hello]):
    """A connection to the engine that listens at `place`; survives its restarts."""

    def __init__(self, place: Endpoint | str | Path, pages: PublishedPages | None = None) -> None:
        """`pages`: this engine's part of an index of several."""
        super().__init__(place, "engine", msgspec.msgpack.Decoder(FromEngine))
        self.stats = EngineStats()
        self.pages = PageIndex().add_replica() if pages is None else pages
        self.adapters: dict[str, AdapterInfo] = {}  # those that requests can name, by name
        self.check: Callable[[Hello], Refusal | None] = lambda hello: None  # of a new connection
        self.on_hello: Callable[[], None] = lambda: None  # called after it
        self.on_adapters: Callable[[Adapters], None] | None = None  # called when they change
        self.may_sleep = False  # its process runs only while the load asks for it
        self.is_asleep: Callable[[], bool] = lambda: False  # which it does not now
        self.is_draining = False  # it takes nothing new
        self.ready_since_s = 0.0  # time of its first heartbeat on this connection
        self._has_proved = False  # that it has the token
        self._numbers = itertools.count()
        self._streams: dict[str, RequestStream] = {}  # by id on the wire
        self._cancelled: dict[str, RequestStream] = {}  # those whose trace is still to come, the oldest first
        self._adapter_calls: PendingCalls[AdapterInfo] = PendingCalls()
        self._known_adapters: frozenset[str] | None = None  # last known names, also while disconnected
        self._lost_adapters: frozenset[str] = frozenset()

    @property
    def ready(self) -> bool:
        """Also that it takes requests."""
        return super().ready and not self.is_draining

    @property
    def num_streams(self) -> int:
        """Sequences of this client that have not ended."""
        return len(self._streams)

    @property
    def adapter_names(self) -> AbstractSet[str]:
        """Names of all adapters that the engine has, had when it was connected last, or has lost."""
        return self.adapters.keys() | (self._known_adapters or frozenset()) | self._lost_adapters

    def has_adapter(self, name: str) -> bool:
        """Whether requests can name the adapter, as far as is known; True before the first connection."""
        return self._known_adapters is None or name in self._known_adapters

    def submit(self, requests: list[Request]) -> list[RequestStream]:
        """Send requests together: all are admitted or none. Raises EngineUnavailable when not connected.

        Request ids need not be unique. Rejections are raised when a stream is read.
        """
        self._check_connected()
        renamed: list[Request] = []
        streams: list[RequestStream] = []
        for request in requests:
            wire_id = f"{request.request_id}#{next(self._numbers)}"
            renamed.append(msgspec.structs.replace(request, request_id=wire_id))
            streams.append(self._new_stream(request.request_id, wire_id))
        self._send(Submit(renamed))
        for request, stream in zip(renamed, streams, strict=True):
            self._streams[request.request_id] = stream
        return streams

    async def load_adapter(
        self, name: str, path: str, *, replaces: bool = True, force: bool = False, digest: str = ""
    ) -> AdapterInfo:
        """Serve the adapter in this folder under this name. Raises AdapterError or EngineUnavailable.

        Without `replaces`, a name that an adapter already has raises AdapterExists; without `force`, one that
        names another base model AdapterError. With a `digest` the engine may find the weights elsewhere.
        """
        call_id = str(next(self._numbers))
        return await self._call(call_id, LoadAdapter(call_id, name, path, replaces, force, digest))

    async def unload_adapter(self, name: str) -> AdapterInfo:
        """Stop serving it; requests in progress finish. Raises AdapterError or EngineUnavailable."""
        call_id = str(next(self._numbers))
        return await self._call(call_id, UnloadAdapter(call_id, name))

    def drain(self, handover_s: float) -> None:
        """Have the engine take nothing new, hand back after `handover_s` what still runs, and exit."""
        self._send(Drain(handover_s))

    async def _call(self, call_id: str, message: LoadAdapter | UnloadAdapter) -> AdapterInfo:
        self._check_connected()
        self._send(message)
        return await self._adapter_calls.answer(call_id)

    def _new_stream(self, request_id: str, wire_id: str) -> RequestStream:
        def on_cancel() -> None:
            if (stream := self._streams.pop(wire_id, None)) is not None:
                self._send(Cancel([wire_id]))
                self._expect_trace(wire_id, stream)

        return RequestStream(request_id, on_cancel)

    def _expect_trace(self, wire_id: str, stream: RequestStream) -> None:
        """An engine of an earlier version sends none: what waits is bounded."""
        if stream.on_trace is not None:
            self._cancelled[wire_id] = stream
            if len(self._cancelled) > MAX_CANCELLED:
                self._cancelled.pop(next(iter(self._cancelled))).settle_trace(None)

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Outputs():
                self._dispatch(message.outputs)
            case Heartbeat():
                self._beat(message.stats)
            case Rejected():
                self._reject(message)
            case Hello() | Challenge() | TurnedAway():
                self._open(message)
            case Adapters():
                self._learn(message)
            case CachedPages():
                self.pages.update(message)
            case Draining():
                self.is_draining = True
            case Returned():
                self._hand_back(message)
            case AdapterDone():
                self._adapter_calls.settle(message.call_id, message.info)

    def _dispatch(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            wire_id = output.request_id
            stream = self._streams.get(wire_id)
            if output.finish_reason is not None:
                self._streams.pop(wire_id, None)
                if (cancelled := self._cancelled.pop(wire_id, None)) is not None:
                    cancelled.settle_trace(output.trace)
            if stream is not None:  # not cancelled while this was on its way
                stream.push(output)

    def _beat(self, stats: EngineStats) -> None:
        self.stats = stats
        if not self._has_beaten:
            self._has_beaten, self.ready_since_s = True, time.monotonic()

    def _hand_back(self, message: Returned) -> None:
        for request_id in message.request_ids:
            if (stream := self._streams.pop(request_id, None)) is not None:
                stream.fail(HandedBack("the engine drains"))
                self._expect_trace(request_id, stream)

    def _open(self, message: Hello | Challenge | TurnedAway) -> None:
        """What comes first on a connection."""
        token = self._endpoint.token if isinstance(self._endpoint, RemoteEndpoint) else ""
        if isinstance(message, TurnedAway):
            self._leave(f"refuses this gateway: {message.reason}")
        elif isinstance(message, Challenge):
            if token:
                self._has_proved = True
                self._send(prove(token, message))
            else:
                self._leave("asks for a token, and the policies name none: set connection.token_env")
        elif token and not self._has_proved:
            self._leave("asks for no token although the policies name one: start it with --token-env")
        else:
            self.hello = message
            self.refuse(self.check(message))
            self.on_hello()

    def refuse(self, refusal: Refusal | None) -> None:
        """Ask it nothing, or again where there is no reason any more."""
        if refusal is not None and refusal != self.refusal:
            logger.warning("the engine at %s is not asked: %s", self.place, refusal.message)
        self.refusal = refusal

    def _reject(self, message: Rejected) -> None:
        """A request or an adapter call was rejected; ids of the one are never ids of the other."""
        stream = self._streams.pop(message.request_id, None)
        if stream is not None:
            stream.fail(message.to_error())
        elif (cancelled := self._cancelled.pop(message.request_id, None)) is not None:
            cancelled.settle_trace(None)
        else:
            self._adapter_calls.settle(message.request_id, message.to_error())

    def _learn(self, message: Adapters) -> None:
        self.adapters = {info.name: info for info in message.adapters}
        self._known_adapters = frozenset(self.adapters)
        self._lost_adapters = frozenset(message.lost)
        if self.on_adapters is not None:
            self.on_adapters(message)

    def _fail_pending(self, new_error: Callable[[], EngineUnavailable]) -> None:
        self._has_proved = False
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(new_error())
        cancelled, self._cancelled = self._cancelled, {}
        for stream in cancelled.values():
            stream.settle_trace(None)
        self.adapters = {}
        self.is_draining = False
        self.pages.clear()
        self._adapter_calls.fail_all(new_error)


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
    first.retry_after_s = second.retry_after_s
    first.num_cached_tokens = max(first.num_cached_tokens, second.num_cached_tokens)
    first.num_drafted += second.num_drafted
    first.num_accepted += second.num_accepted
    first.num_predicted += second.num_predicted
    first.num_predicted_accepted += second.num_predicted_accepted
    first.machine_s = second.machine_s
    return first

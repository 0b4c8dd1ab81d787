"""Serves an engine: admits requests, runs steps, sends each gateway its outputs, loads adapters."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from backend.engine.engine import Engine
from backend.engine.sleep import Sleeper
from backend.errors import AdapterError, QueueFull, RequestError
from backend.lora.info import AdapterInfo
from backend.lora.store import AdapterStore
from backend.server.connections import Connection
from backend.server.engine_messages import (
    DIGEST_BYTES,
    AdapterDone,
    Adapters,
    CachedPages,
    Cancel,
    Drain,
    Draining,
    Heartbeat,
    Hello,
    LoadAdapter,
    Outputs,
    Returned,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from backend.server.server import Server, ServerLimits
from backend.server.spans import SpanEmitter
from backend.server.stats import StatsCollector
from backend.server.wire import Rejected
from backend.types import Request, RequestTrace, Sequence, StepOutput

logger = logging.getLogger(__name__)

_ADAPTER_POLL_S = 0.005

Gateway = Connection[ToEngine]


class _Route(NamedTuple):
    """Where a request's outputs go, and the id that its gateway gave it."""

    connection: Gateway
    request_id: str


class EngineServer(Server[ToEngine]):
    """Serves one engine on one listening socket until `stop`."""

    def __init__(
        self,
        engine: Engine,
        hello: Hello,
        listener: socket.socket,
        limits: ServerLimits | None = None,
        spans: SpanEmitter | None = None,
        sleeper: Sleeper | None = None,
    ) -> None:
        super().__init__(listener, msgspec.msgpack.Decoder(ToEngine), limits)
        self._engine = engine
        self._hello = hello
        self._spans = spans
        self._sleeper = sleeper
        self._routes: dict[str, _Route] = {}
        self._sent_adapters_version = 0
        self._stats = StatsCollector()
        engine.on_begin = self._tell_begun
        engine.kv.take_changes()

    def close(self) -> None:
        """Close the engine, and export the last spans."""
        self._engine.close()
        if self._spans is not None:
            self._spans.close()

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return self._engine.has_work

    def _greet(self, connection: Gateway) -> None:
        self._send(connection, self._hello)
        if self._engine.adapters is not None:
            self._send(connection, _adapters_message(self._engine.adapters))
        self._send(connection, CachedPages(_joined(self._engine.kv.cached_digests())))

    def _handle(self, connection: Gateway, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(connection, message.requests)
            case Cancel():
                self._abort([_key(connection, request_id) for request_id in message.request_ids])
            case LoadAdapter():
                self._load_adapter(connection, message)
            case UnloadAdapter():
                self._unload_adapter(connection, message)
            case Drain():
                self.stop(message.handover_s)

    def _step(self) -> None:
        """Compute one step and send its outputs, one message per gateway."""
        if self._sleeper is not None:
            self._sleeper.wake()
        outputs = self._engine.step()
        self._broadcast_adapters()  # a request must not learn first that its adapter is gone
        self._send_outputs(outputs, self._hand_over_traces())
        if self._engine.last_report is not None:
            self._stats.observe(self._engine.last_report)

    def _idle(self) -> float:
        """Sleep where that is due, and poll the reading of adapters, which wakes no socket."""
        adapters = self._engine.adapters
        if self._sleeper is not None:
            self._sleeper.rest()
        if adapters is None or not adapters.is_busy:
            return float("inf")
        adapters.poll()
        self._broadcast_adapters()
        return _ADAPTER_POLL_S

    def _heartbeat(self) -> Heartbeat:
        changes = self._engine.kv.take_changes()
        if changes:
            published = [digest for digest, is_published in changes.items() if is_published]
            evicted = [digest for digest, is_published in changes.items() if not is_published]
            self._broadcast(CachedPages(_joined(published), _joined(evicted)))
        return Heartbeat(self._stats.steps_total, self._stats.snapshot(self._engine))

    def _cancel_all(self, connection: Gateway) -> int:
        keys = [key for key, route in self._routes.items() if route.connection is connection]
        self._abort(keys)
        return len(keys)

    def _begin_drain(self) -> None:
        super()._begin_drain()
        self._broadcast(Draining())

    def _abandon(self) -> None:
        """Hand back what still runs: its gateway goes on with it elsewhere."""
        for connection in {route.connection for route in self._routes.values()}:
            ids = [route.request_id for route in self._routes.values() if route.connection is connection]
            self._send(connection, Returned(ids))
            self._cancel_all(connection)
            logger.info("%d requests handed back", len(ids))

    def _submit(self, connection: Gateway, requests: list[Request]) -> None:
        """Admit all requests or none."""
        if self.is_draining:
            self._send(connection, Returned([request.request_id for request in requests]))
            return
        added: list[str] = []
        try:
            for request in requests:
                key = _key(connection, request.request_id)
                self._engine.add(msgspec.structs.replace(request, request_id=key))
                added.append(key)
                self._routes[key] = _Route(connection, request.request_id)
        except (RequestError, QueueFull) as error:
            for key in added:
                self._engine.abort(key)
                del self._routes[key]
            self._hand_over_traces()
            for request in requests:
                self._stats.count_finished("rejected")
                self._send(connection, Rejected.from_error(request.request_id, error))

    def _abort(self, keys: list[str]) -> None:
        """Drop those of these requests that have not ended; a last output of each has its trace."""
        running = [key for key in keys if key in self._routes]
        for key in running:
            self._engine.abort(key)
        outputs = [StepOutput(request_id=key, finish_reason="abort") for key in running]
        self._send_outputs(outputs, self._hand_over_traces())

    def _tell_begun(self, sequences: list[Sequence]) -> None:
        """Before the step that may be the last: a gateway must know which requests ran when we died."""
        self._send_outputs([StepOutput(request_id=each.request.request_id) for each in sequences])

    def _send_outputs(
        self, outputs: list[StepOutput], traces: Mapping[str, RequestTrace] = MappingProxyType({})
    ) -> None:
        batches: dict[Gateway, list[StepOutput]] = {}
        for output in outputs:
            route = self._routes[output.request_id]
            if output.finish_reason is not None:
                del self._routes[output.request_id]
                self._stats.count_finished(output.finish_reason)
                output.trace = traces.get(output.request_id)
            output.request_id = route.request_id
            batches.setdefault(route.connection, []).append(output)
        for connection, batch in batches.items():
            self._send(connection, Outputs(batch))

    def _load_adapter(self, connection: Gateway, message: LoadAdapter) -> None:
        if self._sleeper is not None:
            self._sleeper.wake()

        def on_loaded(result: AdapterInfo | AdapterError) -> None:
            self._answer_adapter_call(connection, message.call_id, result)

        try:
            store = self._adapter_store()
        except AdapterError as error:
            on_loaded(error)
        else:
            path = Path(message.path)
            store.load(
                message.name,
                path,
                on_loaded,
                replaces=message.replaces,
                force=message.force,
                digest=message.digest,
            )

    def _unload_adapter(self, connection: Gateway, message: UnloadAdapter) -> None:
        result: AdapterInfo | AdapterError
        try:
            result = self._adapter_store().unload(message.name)
        except AdapterError as error:
            result = error
        self._answer_adapter_call(connection, message.call_id, result)

    def _adapter_store(self) -> AdapterStore:
        if self._engine.adapters is None:
            raise AdapterError("this engine serves no adapters")
        return self._engine.adapters

    def _answer_adapter_call(
        self, connection: Gateway, call_id: str, result: AdapterInfo | AdapterError
    ) -> None:
        """Tell all gateways which adapters there are now, then the caller that its call is done."""
        self._broadcast_adapters()
        if isinstance(result, AdapterError):
            self._send(connection, Rejected.from_error(call_id, result))
        else:
            self._send(connection, AdapterDone(call_id, result))

    def _broadcast_adapters(self) -> None:
        """Tell all gateways which adapters there are, if that has changed."""
        adapters = self._engine.adapters
        if adapters is not None and adapters.version != self._sent_adapters_version:
            self._sent_adapters_version = adapters.version
            self._broadcast(_adapters_message(adapters))

    def _hand_over_traces(self) -> dict[str, RequestTrace]:
        """Have spans made of the requests that have ended; returns their traces by request."""
        traces = self._engine.take_traces()
        for trace in traces:
            if self._spans is not None and trace.traceparent:
                self._spans.emit(trace)
        return {trace.request_id: trace for trace in traces}


def _joined(digests: list[bytes]) -> bytes:
    return b"".join(digest[:DIGEST_BYTES] for digest in digests)


def _adapters_message(adapters: AdapterStore) -> Adapters:
    return Adapters(adapters.infos, adapters.lost)


def _key(connection: Gateway, request_id: str) -> str:
    """The request's id inside the engine: gateways choose theirs independently of each other."""
    return f"{connection.number}/{request_id}"

"""The engine process's loop: read what gateways ask, compute one step, send what it gave, beat.

Single-threaded. The heartbeat comes from this loop and nowhere else: when steps stop, it stops.
"""

from __future__ import annotations

import itertools
import logging
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backend.engine.engine import Engine
from backend.engine.step_report import RequestTrace
from backend.errors import (
    AdapterError,
    AdapterExists,
    AdapterGone,
    EngineError,
    FrameError,
    PromptTooLong,
    QueueFull,
    RequestError,
)
from backend.lora.info import AdapterInfo
from backend.lora.store import AdapterStore
from backend.server.connections import Connection, ConnectionEnded, encode
from backend.server.messages import (
    AdapterResult,
    Adapters,
    Cancel,
    Heartbeat,
    Hello,
    LoadAdapter,
    Outputs,
    Rejected,
    Submit,
    UnloadAdapter,
)
from backend.server.stats import StatsCollector
from backend.types import Request, StepOutput

logger = logging.getLogger(__name__)

_ADAPTER_POLL_S = 0.005
_SHUTTING_DOWN = "the engine is shutting down; send the request again"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one engine process's loop."""

    heartbeat_s: float = 0.5
    max_buffered_bytes: int = 32 * 1024 * 1024  # waiting to be read by one gateway
    stall_limit_s: float = 30.0  # a gateway that reads nothing for so long is dropped
    drain_limit_s: float = 30.0  # after stop(): how long running requests may take


@dataclass(frozen=True, slots=True)
class _Route:
    """Whose request it is, and what its owner calls it."""

    connection: Connection
    request_id: str


class EngineServer:
    """Serves one engine on one listening socket until `stop()`."""

    def __init__(
        self,
        engine: Engine,
        hello: Hello,
        listener: socket.socket,
        limits: ServerLimits | None = None,
        on_trace: Callable[[RequestTrace], None] | None = None,
    ) -> None:
        listener.setblocking(False)
        self.on_beat: Callable[[], None] = _nothing  # called by the loop with every heartbeat
        self._engine = engine
        self._hello = encode(hello)
        self._listener = listener
        self._limits = limits or ServerLimits()
        self._on_trace = on_trace
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._connections: dict[socket.socket, Connection] = {}
        self._numbers = itertools.count()
        self._routes: dict[str, _Route] = {}
        self._version_told = 0  # of the adapters' names
        self._stats = StatsCollector()
        self._next_beat_s = 0.0
        self._stop_requested = False
        self._drain_until_s = float("inf")

    def stop(self) -> None:
        """Accept nothing more, finish what runs, return from `run`. May be called from a signal handler."""
        self._stop_requested = True

    def run(self) -> None:
        """Serve until `stop`. Raises what the engine raised when it cannot go on; everybody is hung up on."""
        try:
            self._loop()
            self._end()
        finally:
            self._close()

    def _loop(self) -> None:
        engine = self._engine
        while True:
            if self._stop_requested and self._listener.fileno() >= 0:
                self._begin_drain()
            now_s = time.monotonic()
            if now_s >= self._drain_until_s or (self._stop_requested and not engine.has_work):
                break
            self._poll(0.0 if engine.has_work else self._idle_s(now_s))
            if engine.has_work:
                outputs = engine.step()
                self._tell_adapters()  # before those that asked for one learn that it is gone
                self._deliver(outputs)
                if engine.last_report is not None:
                    self._stats.observe(engine.last_report)
            self._hand_over_traces()
            if time.monotonic() >= self._next_beat_s:
                self._beat()

    def _idle_s(self, now_s: float) -> float:
        """How long to wait for messages: less while an adapter is being read, which nobody announces."""
        adapters = self._engine.adapters
        wait_s = max(0.0, self._next_beat_s - now_s)
        if adapters is None or not adapters.is_busy:
            return wait_s
        adapters.poll()
        self._tell_adapters()
        return min(wait_s, _ADAPTER_POLL_S)

    def _poll(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
                continue
            connection = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    connection.flush()
                    self._watch(connection)
                if events & selectors.EVENT_READ:
                    self._read(connection)
            except ConnectionEnded as error:
                self._drop(connection, str(error))

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the peer has gone already
            return
        limits = self._limits
        connection = Connection(sock, next(self._numbers), limits.max_buffered_bytes, limits.stall_limit_s)
        self._connections[sock] = connection
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._send(connection, self._hello)
        if self._engine.adapters is not None:
            self._send(connection, _known(self._engine.adapters))
        self._send(connection, self._heartbeat())

    def _read(self, connection: Connection) -> None:
        try:
            messages = connection.receive()
        except (FrameError, msgspec.MsgspecError) as error:
            # A decoding error names a path and types, never a value: safe to log.
            self._drop(connection, f"sent a malformed frame: {error}")
            return
        for message in messages:
            if connection.sock not in self._connections:  # dropped by the answer to an earlier message
                return
            match message:
                case Submit():
                    self._submit(connection, message.requests)
                case Cancel():
                    for request_id in message.request_ids:
                        self._abort(_route_key(connection, request_id))
                case LoadAdapter():
                    self._load_adapter(connection, message)
                case UnloadAdapter():
                    self._unload_adapter(connection, message)

    def _load_adapter(self, connection: Connection, message: LoadAdapter) -> None:
        def on_loaded(result: AdapterInfo | AdapterError) -> None:
            self._answer_adapter(connection, message.call_id, result)

        if self._engine.adapters is None:
            on_loaded(AdapterError("this engine serves no adapters"))
        else:
            path, replaces = Path(message.path), message.replaces
            self._engine.adapters.load(message.name, path, on_loaded, replaces=replaces)

    def _unload_adapter(self, connection: Connection, message: UnloadAdapter) -> None:
        result: AdapterInfo | AdapterError
        try:
            if self._engine.adapters is None:
                raise AdapterError("this engine serves no adapters")
            result = self._engine.adapters.unload(message.name)
        except AdapterError as error:
            result = error
        self._answer_adapter(connection, message.call_id, result)

    def _answer_adapter(
        self, connection: Connection, call_id: str, result: AdapterInfo | AdapterError
    ) -> None:
        """Everybody learns what there is now, then who asked learns what came of it."""
        self._tell_adapters()
        if isinstance(result, AdapterError):
            answer = AdapterResult(call_id, error=str(result), exists=isinstance(result, AdapterExists))
        else:
            answer = AdapterResult(call_id, result)
        self._send(connection, encode(answer))

    def _tell_adapters(self) -> None:
        """Everybody learns what there is now, if that is not what they know."""
        adapters = self._engine.adapters
        if adapters is None or adapters.version == self._version_told:
            return
        self._version_told = adapters.version
        body = _known(adapters)
        for connection in list(self._connections.values()):
            self._send(connection, body)

    def _submit(self, connection: Connection, requests: list[Request]) -> None:
        """Admit all or none."""
        added: list[str] = []
        try:
            for request in requests:
                key = _route_key(connection, request.request_id)
                self._admit(msgspec.structs.replace(request, request_id=key))
                added.append(key)
                self._routes[key] = _Route(connection, request.request_id)
        except (RequestError, QueueFull) as error:
            for key in added:
                self._engine.abort(key)
                del self._routes[key]
            for request in requests:
                self._stats.count_finished("rejected")
                self._send(connection, encode(_rejection(request.request_id, error)))

    def _admit(self, request: Request) -> None:
        if self._stop_requested:
            raise QueueFull(_SHUTTING_DOWN, retry_after_s=1.0)
        self._engine.add(request)

    def _abort(self, key: str) -> None:
        if self._routes.pop(key, None) is not None:
            self._engine.abort(key)
            self._stats.count_finished("abort")

    def _deliver(self, outputs: list[StepOutput]) -> None:
        """One Outputs frame per connection."""
        batches: dict[Connection, list[StepOutput]] = {}
        for output in outputs:
            route = self._routes[output.request_id]
            if output.finish_reason is not None:
                del self._routes[output.request_id]
                self._stats.count_finished(output.finish_reason)
            output.request_id = route.request_id
            batches.setdefault(route.connection, []).append(output)
        for connection, batch in batches.items():
            self._send(connection, encode(Outputs(batch)))

    def _send(self, connection: Connection, body: bytes) -> None:
        """Send, or drop a connection that cannot take it. One that was dropped before takes anything."""
        if connection.sock not in self._connections:
            return
        try:
            connection.send(body)
            self._watch(connection)
        except EngineError as error:  # ended, too slow, or a frame above the limit
            self._drop(connection, str(error))

    def _watch(self, connection: Connection) -> None:
        """Wake up for writing only while something waits to be written."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_outgoing else 0)
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, connection)

    def _drop(self, connection: Connection, reason: str) -> None:
        """Forget a gateway and everything that it asked for."""
        if self._connections.pop(connection.sock, None) is None:
            return
        self._selector.unregister(connection.sock)
        connection.close()
        keys = [key for key, route in self._routes.items() if route.connection is connection]
        for key in keys:
            self._abort(key)
        logger.info("connection %d ended (%s); %d requests aborted", connection.number, reason, len(keys))

    def _beat(self) -> None:
        self._next_beat_s = time.monotonic() + self._limits.heartbeat_s
        body = self._heartbeat()
        for connection in list(self._connections.values()):
            self._send(connection, body)
        self.on_beat()

    def _heartbeat(self) -> bytes:
        return encode(Heartbeat(self._stats.steps_total, self._stats.snapshot(self._engine)))

    def _hand_over_traces(self) -> None:
        traces = self._engine.take_traces()
        if self._on_trace is not None:
            for trace in traces:
                self._on_trace(trace)

    def _begin_drain(self) -> None:
        self._drain_until_s = time.monotonic() + self._limits.drain_limit_s
        self._selector.unregister(self._listener)
        self._listener.close()
        logger.info("draining: %d requests to finish", len(self._routes))

    def _end(self) -> None:
        """Tell who still waits, let the last bytes out."""
        for key, route in list(self._routes.items()):
            output = StepOutput(request_id=route.request_id, finish_reason="error", error=_SHUTTING_DOWN)
            self._engine.abort(key)
            self._send(route.connection, encode(Outputs([output])))
        self._routes.clear()
        self._hand_over_traces()
        deadline_s = time.monotonic() + 1.0
        while any(c.has_outgoing for c in self._connections.values()) and time.monotonic() < deadline_s:
            self._poll(0.1)

    def _close(self) -> None:
        self._listener.close()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._selector.close()


def _known(adapters: AdapterStore) -> bytes:
    return encode(Adapters(adapters.infos, adapters.lost))


def _nothing() -> None:
    """No observer."""


def _route_key(connection: Connection, request_id: str) -> str:
    """The id inside the engine: gateways choose theirs independently of each other."""
    return f"{connection.number}/{request_id}"


def _rejection(request_id: str, error: RequestError | QueueFull) -> Rejected:
    match error:
        case QueueFull():
            return Rejected(request_id, "queue_full", str(error), retry_after_s=error.retry_after_s)
        case PromptTooLong():
            return Rejected(request_id, "prompt_too_long", str(error), param=error.param)
        case AdapterGone():
            return Rejected(request_id, "adapter_gone", str(error), param=error.param)
    return Rejected(request_id, "invalid", str(error), param=error.param)

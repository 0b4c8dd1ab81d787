"""The parent process of `penstock serve`: starts engines, encoders and gateway workers.

Restarts them when they exit or hang. At shutdown the workers drain first, then the engines end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from backend.server.encoder_client import EncoderClient
from backend.server.engine_client import EngineClient
from gateway.processes.managed_process import CannotServe, ManagedProcess, Progress
from gateway.processes.sockets import BackendSockets
from gateway.processes.specs import RestartableConfig, backend_command, backend_config, worker_command
from gateway.processes.status import ProcessStatus, encode_statuses
from gateway.processes.watchdog import Heartbeats, kill_when_hung
from gateway.settings import Settings, SettingsError
from gateway.telemetry.shared_counters import new_counter_file
from policies.document import Policies

logger = logging.getLogger(__name__)

KILL_AFTER_S = 3.0
"""How long a process may take to exit after its drain timeout."""


class BackendClient(Heartbeats, Protocol):
    """The part of an engine's or encoder's client that the supervisor needs."""

    async def start(self) -> None:
        """Connect in the background."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


@dataclass(eq=False, slots=True)
class _Backend:
    """An engine or encoder process, and the client that receives its heartbeats."""

    model: str
    process: ManagedProcess
    client: BackendClient
    fraction: float = 0.0


class Supervisor:
    """Runs one `penstock serve`. `run` returns the exit code."""

    def __init__(
        self, settings: Settings, policies: Policies, listener: socket.socket, on_ready: Callable[[], None]
    ) -> None:
        """`on_ready` is called once, when every process is ready for the first time."""
        self._policies = policies
        self._listener = listener
        self._on_ready = on_ready
        names = [name for name, entry in policies.models.items() if entry.kind != "upstream"]
        configs = {name: backend_config(name, policies, settings) for name in names}
        self._sockets = BackendSockets(names)
        self._settings = msgspec.structs.replace(
            settings,
            socket_paths={name: each.path for name, each in self._sockets.by_name.items()},
            counter_fds=_new_counter_files(settings.workers),
        )
        self._backends = [self._backend(name, configs[name]) for name in names]
        self._workers = [self._worker(number) for number in range(settings.workers)]
        self._stop = asyncio.Event()
        self._signals: list[signal.Signals] = []

    def _backend(self, name: str, config: RestartableConfig) -> _Backend:
        socket = self._sockets.by_name[name]
        command = backend_command(config, self._policies, socket.listener.fileno())
        client: EngineClient | EncoderClient
        if self._policies.models[name].kind == "engine":
            client = EngineClient(socket.path)
            client.on_adapters = config.keep_adapters
        else:
            client = EncoderClient(socket.path)
        backend = _Backend(name, ManagedProcess(command, lambda progress: None), client)
        backend.process.on_progress = lambda progress: self._on_progress(backend, progress)
        return backend

    def _worker(self, number: int) -> ManagedProcess:
        fds = [self._listener.fileno(), *self._sockets.fds, *self._settings.counter_fds]
        command = worker_command(number, self._policies, self._settings, fds, self._encode_statuses)
        return ManagedProcess(command, lambda progress: None)

    async def run(self) -> int:
        """Run until a signal. 0: drained; 2: a configuration cannot work; 128 + n: second signal n."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        tasks: list[asyncio.Task[None]] = [
            asyncio.create_task(each.run(), name=each.command.name) for each in self._processes()
        ]
        for backend in self._backends:
            await backend.client.start()
            tasks.append(asyncio.create_task(kill_when_hung(backend.process, backend.client)))
        tasks += [asyncio.create_task(kill_when_hung(worker, worker)) for worker in self._workers]
        tasks.append(asyncio.create_task(self._wait_ready()))
        for task in tasks:
            task.add_done_callback(self._on_task_end)
        try:
            await self._stop.wait()
            await self._drain()
            return self._exit_code(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for backend in self._backends:
                await backend.client.close()
            self._sockets.close()

    def _processes(self) -> list[ManagedProcess]:
        return [*self._workers, *(backend.process for backend in self._backends)]

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._stop.set()

    def _exit_code(self, tasks: list[asyncio.Task[None]]) -> int:
        for task in tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if isinstance(error, CannotServe):
                logger.error("%s cannot serve: see its error above", error)
                return 2
            if error is not None:
                raise error
        return 128 + self._signals[1] if len(self._signals) > 1 else 0

    async def _drain(self) -> None:
        self._listener.close()  # workers have their own copies; the port is free when all are closed
        if self._signals:
            logger.info(
                "draining for at most %g s; signal again to exit at once", self._settings.drain_timeout_s
            )
        limit_s = self._settings.drain_timeout_s + KILL_AFTER_S
        await asyncio.gather(*(worker.stop(limit_s) for worker in self._workers))
        await asyncio.gather(*(backend.process.stop(KILL_AFTER_S) for backend in self._backends))

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._stop.set()
        if len(self._signals) > 1:
            for process in self._processes():
                process.kill()

    def _on_progress(self, backend: _Backend, progress: Progress) -> None:
        backend.fraction = progress.fraction
        statuses = self._encode_statuses()
        for worker in self._workers:
            worker.send(statuses)

    def _encode_statuses(self) -> bytes:
        return encode_statuses(
            {
                backend.model: ProcessStatus(
                    phase=backend.process.phase or "starting",
                    fraction=backend.fraction,
                    failure=backend.process.restarts.repeated,
                )
                for backend in self._backends
            }
        )

    async def _wait_ready(self) -> None:
        while not self._is_ready():
            await asyncio.sleep(0.05)
        self._on_ready()

    def _is_ready(self) -> bool:
        return all(worker.phase == "ready" for worker in self._workers)


def _new_counter_files(workers: int) -> tuple[int, ...]:
    """One for each of several workers; none for a single one. Raises SettingsError."""
    if workers == 1:
        return ()
    try:
        return tuple(new_counter_file() for _ in range(workers))
    except OSError as error:
        raise SettingsError(
            f"cannot create counter files for {workers} workers ({error}): serve with fewer"
        ) from None

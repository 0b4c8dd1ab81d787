"""Engine and encoder processes: each with its socket, a client for its heartbeats, and a watchdog."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from backend.config import EngineConfig
from backend.server.encoder_client import EncoderClient
from backend.server.engine_client import EngineClient
from gateway.processes.card_shares import ALL
from gateway.processes.cards import describe
from gateway.processes.managed_process import CannotServe, ManagedProcess, Progress
from gateway.processes.sockets import BackendSockets
from gateway.processes.specs import RestartableConfig, backend_command, backend_config
from gateway.processes.status import ASLEEP, ProcessStatus
from gateway.processes.watchdog import kill_when_hung
from gateway.settings import Settings
from policies.document import Policies
from policies.names import replica_names

logger = logging.getLogger(__name__)

KILL_AFTER_S = 3.0
"""How long a process may take to exit after it was told to."""


@dataclass(eq=False, slots=True)
class Backend:
    """One process. `spec` is what it was configured with: an equal one serves the same."""

    name: str  # its model's, with a number for its second, third, … replica
    spec: bytes
    sockets: BackendSockets
    process: ManagedProcess
    client: EngineClient | EncoderClient
    config: RestartableConfig
    fraction: float = 0.0
    is_asleep: bool = True  # it is not to run; `tasks` are empty once it does not
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Start the process and watch it."""
        self.is_asleep = False
        self.tasks.append(asyncio.create_task(self.process.run(), name=self.process.command.name))
        await self.client.start()
        self.tasks.append(asyncio.create_task(kill_when_hung(self.process, self.client)))

    async def stop(self) -> None:
        """End it, and release what it holds."""
        await self._end()
        await self.close()

    async def retire(self, handover_s: float) -> None:
        """End an engine that others of its model replace: what runs after `handover_s` goes on there."""
        await self._drain(handover_s)
        await self.stop()

    async def sleep(self, handover_s: float) -> None:
        """The same, but it may `start` again."""
        self.is_asleep = True
        await self._drain(handover_s)
        await self._end()
        self.tasks.clear()
        self.process = ManagedProcess(self.process.command, self.process.on_progress)

    async def _drain(self, handover_s: float) -> None:
        if isinstance(self.client, EngineClient) and self.tasks:
            self.process.begin_stop()
            self.client.drain(handover_s)
            await asyncio.wait(self.tasks[:1], timeout=handover_s + KILL_AFTER_S)

    async def _end(self) -> None:
        await self.process.stop(KILL_AFTER_S)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def close(self) -> None:
        """Disconnect, and close the socket."""
        await self.client.close()
        self.sockets.close()

    @property
    def service(self) -> bytes:
        """What it was configured with, apart from its card."""
        return msgspec.json.encode(msgspec.json.decode(self.spec) | {"card": ""})

    @property
    def failure(self) -> str:
        """Why it will not become ready; "" while it may."""
        run = self.tasks[0] if self.tasks else None
        error = run.exception() if run is not None and run.done() and not run.cancelled() else None
        if isinstance(error, CannotServe):
            return str(error)
        repeated = self.process.restarts.repeated
        return "" if repeated is None else f"{self.process.command.name} failed: {repeated.cause}"

    def status(self) -> ProcessStatus:
        """For the workers."""
        if self.is_asleep:
            return ProcessStatus(phase=ASLEEP)
        failure = self.process.restarts.repeated
        return ProcessStatus(phase=self.process.phase or "starting", fraction=self.fraction, failure=failure)


def new_backend(
    name: str, policies: Policies, settings: Settings, on_progress: Callable[[], None]
) -> Backend:
    """One of `backend_names`, not started. Raises CheckpointError or SettingsError."""
    config = backend_config(name, policies, settings)
    spec = config.line()
    sockets = BackendSockets([name])
    socket = sockets.by_name[name]
    command = backend_command(name, config, policies, socket.listener.fileno(), settings.log_format)
    client: EngineClient | EncoderClient
    if isinstance(config.config, EngineConfig):
        client = EngineClient(socket.path)
        client.on_adapters = config.keep_adapters
        own = config.config
        if own.card or own.gpu_memory != ALL:
            logger.info("engine %r may take %g of the memory of %s", name, own.gpu_memory, describe(own.card))
    else:
        client = EncoderClient(socket.path)
    backend = Backend(name, spec, sockets, ManagedProcess(command, lambda progress: None), client, config)

    def note(progress: Progress) -> None:
        backend.fraction = progress.fraction
        on_progress()

    backend.process.on_progress = note
    return backend


def backend_names(policies: Policies) -> list[str]:
    """The processes here of all models: engines, with a number for further replicas, and encoders."""
    names: list[str] = []
    for model, entry in policies.models.items():
        if entry.kind != "upstream" and not (entry.engine and entry.engine.is_remote):
            names += replica_names(model, 1 if entry.engine is None else entry.engine.replica_range.max)
    return names

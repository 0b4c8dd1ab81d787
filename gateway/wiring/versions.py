"""The versions of the policies in one gateway worker: built, switched and ended as the supervisor says."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Coroutine, Mapping

import msgspec

from backend.errors import CheckpointError
from backend.server.engine_client import EngineClient
from gateway.admin.policies import Ask
from gateway.errors import InvalidRequest, TimedOut
from gateway.log import hide
from gateway.processes.managed_process import Progress
from gateway.processes.messages import Activate, PolicyState, Prepare, Reply, ToWorker, Version
from gateway.processes.supervisor_pipes import SupervisorPipes
from gateway.settings import SettingsError
from gateway.web.versioned_app import VersionedApp
from gateway.wiring.app import BuiltVersion, build_version
from gateway.wiring.worker_parts import build_parts
from policies.names import split_replica

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
"""How long a version waits for its connections to engines that are ready, before it may be switched to."""
ASK_TIMEOUT_S = 960.0
"""Longer than a supervisor waits for new engines."""
_POLL_S = 0.01


class Versions:
    """Implements `gateway.admin.policies.PolicyControl`. Create it inside the event loop."""

    def __init__(self, first: Version, worker: int, pipes: SupervisorPipes) -> None:
        """Raises CheckpointError, SettingsError or TelemetryError."""
        self.state = PolicyState(first.policies.version)
        self.phase = "serving"  # of the heartbeats
        self._pipes = pipes
        hide(first.settings.secrets)
        self._parts = build_parts(
            first.settings, first.metric_models, statuses=pipes.statuses, worker=worker, policies=self
        )
        self._parts.routing.ledger.accounts.start()
        self._opened: dict[int, tuple[Version, Mapping[str, EngineClient]]] = {}
        built = self._build(first)
        self._use_engines(built.engines)
        self._parts.use_policies(first.policies)
        self.app = VersionedApp(first.serial, built.router, self._parts.background_work)
        self._parts.use_app(self.app)
        self._error = ""
        self._answers: dict[int, asyncio.Future[Reply]] = {}
        self._ask_ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        pipes.on_message = self.on_message

    async def close(self) -> None:
        """Close what all versions have in common."""
        await self._parts.close()

    def on_message(self, message: ToWorker) -> None:
        """Do what the supervisor says."""
        if isinstance(message, PolicyState):
            self.state = message
        elif isinstance(message, Reply):
            waiting = self._answers.pop(message.ask_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif isinstance(message, Prepare):
            self._run(self._prepare(message.version))
        elif isinstance(message, Activate):
            self._activate(message)

    async def ask(self, action: Ask) -> str:
        """Have the supervisor reload or roll back. Raises InvalidRequest with its reason, or TimedOut."""
        number = next(self._ask_ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.report(Progress(self.phase, 1.0, ask=action, ask_id=number))
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                reply: Reply = await answer
        except TimeoutError:
            raise TimedOut("The supervisor has not answered.") from None
        finally:
            self._answers.pop(number, None)
        if not reply.is_done:
            raise InvalidRequest(
                f"The policies were not changed: {reply.message}", code="policies_not_changed"
            )
        return reply.message

    def report(self, progress: Progress | None = None) -> None:
        """Send a heartbeat."""
        progress = progress or Progress(self.phase, 1.0)
        prepared = max(self.app.serial, *self._opened) if self._opened else self.app.serial
        wanted = {split_replica(name)[0] for name, client in self._engines.items() if client.num_waiters}
        self._pipes.report(
            msgspec.structs.replace(
                progress,
                prepared=prepared,
                prepare_error=self._error,
                oldest=self.app.oldest_serial,
                wanted=tuple(wanted),
            )
        )

    def _use_engines(self, engines: Mapping[str, EngineClient]) -> None:
        self._engines = engines
        self._parts.metrics.set_engines(engines)

    async def _prepare(self, version: Version) -> None:
        self._error = ""
        hide(version.settings.secrets)
        try:
            self._parts.metrics.add_models(version.metric_models)
            built = self._build(version)
        except (CheckpointError, SettingsError) as error:
            self._error = str(error)
            self.report()
            return
        await self.app.open(version.serial, built.router)
        await self._connected(built)
        self._opened[version.serial] = version, built.engines
        self.report()

    async def _connected(self, built: BuiltVersion) -> None:
        """Wait for the engines that are ready: the first request must not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while not all(
                    client.ready or client.is_away or client.may_sleep for client in built.engines.values()
                ):
                    await asyncio.sleep(_POLL_S)

    def _activate(self, message: Activate) -> None:
        opened = self._opened.pop(message.serial, None)
        if message.is_discarded:
            self._run(self.app.discard(message.serial))
        elif opened is not None:
            version, engines = opened
            self.app.switch(message.serial)
            self._use_engines(engines)
            self._parts.use_policies(version.policies)
        self.report()

    def _build(self, version: Version) -> BuiltVersion:
        return build_version(version.settings, version.policies, self._parts)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

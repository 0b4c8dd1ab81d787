"""Changes the version of the policies that all workers serve, without losing a request.

A new version is loaded, checked and probed; engines whose configuration differs are started beside the old
ones; every worker builds what serves it; then all switch. Whatever fails before that leaves the old version
in place. An engine that no version needs ends when its last request has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TypeVar, cast

import msgspec

from backend.classifiers.weights import WeightsError
from backend.errors import CheckpointError
from gateway.auth import key_ring
from gateway.processes.backends import Backend, backend_names, new_backend
from gateway.processes.managed_process import ManagedProcess, Progress
from gateway.processes.messages import Activate, PolicyState, Prepare, Reply, Version, encode
from gateway.processes.specs import backend_config
from gateway.settings import Settings, SettingsError
from policies.document import Policies
from policies.errors import PolicyError
from policies.names import split_replica
from policies.redaction import redacted

logger = logging.getLogger(__name__)

T = TypeVar("T")
Load = Callable[[], tuple[Policies, Settings]]
"""Reads the policies and the settings that follow from them, in a thread. Raises one of `_REFUSALS`."""

LOAD_TIMEOUT_S = 120.0
"""For reading, checking and probing: what takes longer must not keep the next reload waiting."""
PREPARE_TIMEOUT_S = 60.0
BACKENDS_TIMEOUT_S = 900.0
POLL_S = 0.02
MAX_LOST = 20
MAX_KEPT = 10
"""Previous versions that a rollback can lead to, one after the other."""


def _always_runs(name: str, policies: Policies) -> bool:
    """Whether the policies ask for this process without any load."""
    model, number = split_replica(name)
    engine = policies.models[model].engine
    return engine is None or int(number) < engine.replica_range.min


class ReloadFailed(Exception):
    """The old version stays. The message says why, without secrets or prompt text."""


_REFUSALS = (PolicyError, SettingsError, CheckpointError, WeightsError, ReloadFailed)


class Reloader:
    """The current version, those before it, and the processes of the current one."""

    def __init__(
        self,
        version: Version,
        backends: dict[str, Backend],
        load: Load,
        on_change: Callable[[], None],
        on_served: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called when a backend's state or `state` has changed.

        `on_served` is called in a thread when what was loaded is served, before the caller is told.
        """
        self.current = version
        self.backends = backends
        self.state = PolicyState(version.policies.version)
        self.workers: Sequence[ManagedProcess] = ()
        self._progress: dict[ManagedProcess, Progress] = {}
        self._load = load
        self._on_change = on_change
        self._on_served = on_served
        self._serial = version.serial
        self._previous: list[Version] = []
        self._lock = asyncio.Lock()
        self._is_requested = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def reload(self) -> str:
        """Read the policies again. Returns what has happened; raises ReloadFailed."""
        async with self._lock:
            old = self.current
            try:
                async with _limit(LOAD_TIMEOUT_S, "the policies were not read and their probes run"):
                    policies, settings = await in_thread(self._load)
                if policies.version != old.policies.version:
                    await self._change(policies, settings)
            except Exception as error:  # noqa: BLE001 - whatever it is, the old version stays
                raise self._failed(error) from None
            await in_thread(self._on_served)
            if policies.version == old.policies.version:
                self._forget_error()
                return f"unchanged: {policies.version} is served already"
            self._previous = [*self._previous, old][-MAX_KEPT:]
            return self._succeeded(old)

    async def rollback(self) -> str:
        """Serve the version before the current one again, whatever the files say. Raises ReloadFailed."""
        async with self._lock:
            old = self.current
            if not self._previous:  # nothing is wrong with the policies
                raise ReloadFailed("there is no previous version since the start")
            target = self._previous[-1]
            try:
                await self._change(target.policies, target.settings)
            except Exception as error:  # noqa: BLE001 - whatever it is, the old version stays
                raise self._failed(error) from None
            self._previous.pop()
            return self._succeeded(old, is_rolled_back=True)

    def on_worker(self, worker: ManagedProcess, progress: Progress) -> None:
        """Take note of a worker's progress line, and do what it asks for."""
        self._progress[worker] = progress
        if progress.ask:
            self._run(self._answer(worker, progress))

    @property
    def wanted(self) -> set[str]:
        """Models whose engines requests wait for, in any worker."""
        return {name for progress in self._progress.values() for name in progress.wanted}

    async def start(self) -> None:
        """Start the processes that always run."""
        for name, backend in self.backends.items():
            if _always_runs(name, self.current.policies):
                await backend.start()

    async def stop(self) -> None:
        """Leave what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def request(self) -> None:
        """Reload soon; the log has the outcome. Requests that wait for one under way are one."""
        if not self._is_requested:
            self._is_requested = True
            self._run(self._log_reload())

    async def _log_reload(self) -> None:
        async with self._lock:  # the reload after this one reads what is there then
            self._is_requested = False
        try:
            logger.info("policies: %s", await self.reload())
        except ReloadFailed:
            return  # it is in the log

    async def _answer(self, worker: ManagedProcess, progress: Progress) -> None:
        try:
            message = await (self.rollback() if progress.ask == "rollback" else self.reload())
            reply = Reply(progress.ask_id, is_done=True, message=message)
        except ReloadFailed as error:
            reply = Reply(progress.ask_id, is_done=False, message=str(error))
        worker.send(encode(reply))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _failed(self, error: Exception) -> ReloadFailed:
        """Also for an unexpected error: the caller gets an answer, and the log has the traceback."""
        kept, is_known = self.current.policies.version, isinstance(error, _REFUSALS)
        cause = str(error) if is_known else f"unexpected {type(error).__name__}; the log has more"
        cause = redacted(cause, self.current.settings.secrets)
        trace = None if is_known else error
        logger.error("the policies were not changed, %s is still served: %s", kept, cause, exc_info=trace)
        state = self.state
        self.state = msgspec.structs.replace(state, num_failures=state.num_failures + 1, error=cause)
        self._on_change()
        return ReloadFailed(cause)

    def _forget_error(self) -> None:
        """The files say again what is served."""
        if self.state.error or self.state.is_rolled_back:
            self.state = msgspec.structs.replace(self.state, error="", is_rolled_back=False)
            self._on_change()

    def _succeeded(self, old: Version, *, is_rolled_back: bool = False) -> str:
        self.state = PolicyState(
            self.current.policies.version,
            tuple(version.policies.version for version in self._previous),
            self.state.num_reloads + 1,
            self.state.num_failures,
            is_leaving=self.state.is_leaving,
            is_rolled_back=is_rolled_back,
        )
        self._on_change()
        message = f"{self.current.policies.version} is served, {old.policies.version} before"
        lost = _lost(old.policies, self.current.policies)
        return f"{message}; no longer defined: {lost}" if lost else message

    async def _change(self, policies: Policies, settings: Settings) -> None:
        _refuse_lockout(self.current, policies, settings)
        backends: dict[str, Backend] = {}
        started: list[Backend] = []
        self._serial += 1
        try:
            for name in backend_names(policies):
                kept = self.backends.get(name)
                if kept is None or kept.spec != backend_config(name, policies, settings).line():
                    kept = new_backend(name, policies, settings, self._on_change)
                    if _always_runs(name, policies):
                        started.append(kept)
                        await kept.start()
                backends[name] = kept
            await _all_ready(started)
            version = self._version(policies, settings, backends)
            await self._prepare(version)
        except BaseException:
            self._send(Activate(self._serial, is_discarded=True))
            await asyncio.gather(*(backend.stop() for backend in started))
            raise
        unused = [each for each in self.backends.values() if each not in backends.values()]
        self.current, self.backends = version, backends
        self._send(Activate(version.serial))
        self._run(self._retire(unused, version.serial))

    def _version(self, policies: Policies, settings: Settings, backends: dict[str, Backend]) -> Version:
        paths = {name: backend.sockets.by_name[name].shared_path for name, backend in backends.items()}
        shared = self.current.settings
        settings = msgspec.structs.replace(
            settings,
            socket_paths=paths,
            counter_fds=shared.counter_fds,
            fleet_fd=shared.fleet_fd,
            names_fd=shared.names_fd,
            peer_paths=shared.peer_paths,
            peer_fds=shared.peer_fds,
        )
        known = dict.fromkeys((*self.current.metric_models, *policies.metric_names()))
        return Version(self._serial, policies, settings, tuple(known))

    def _send(self, message: Activate) -> None:
        for worker in self.workers:
            worker.send(encode(message))

    async def _prepare(self, version: Version) -> None:
        """Have every worker build the version. Raises ReloadFailed with a worker's reason."""
        line = encode(Prepare(version))
        asked: dict[ManagedProcess, object] = {}
        async with _limit(PREPARE_TIMEOUT_S, "a worker did not build the new version"):
            while True:
                for worker in self.workers:
                    if asked.get(worker) is not worker.subprocess:  # again when it has been restarted
                        asked[worker] = worker.subprocess
                        self._progress.pop(worker, None)
                        worker.send(line)
                found = [self._progress.get(worker) for worker in self.workers]
                errors = [each.prepare_error for each in found if each is not None and each.prepare_error]
                if errors:
                    raise ReloadFailed(errors[0])
                if all(each is not None and each.prepared == version.serial for each in found):
                    return
                await asyncio.sleep(POLL_S)

    async def _retire(self, unused: Sequence[Backend], serial: int) -> None:
        """End processes: replicas at once, as others of their model go on with what they run.

        Others end when no worker has requests of a version before `serial`.
        """
        kept = {(split_replica(each.name)[0], each.service) for each in self.backends.values()}
        replaced = [each for each in unused if (split_replica(each.name)[0], each.service) in kept]
        await asyncio.gather(*(each.retire(self._handover_s(each.name)) for each in replaced))
        while any(each.oldest < serial for each in self._progress.values()):
            await asyncio.sleep(POLL_S)
        await asyncio.gather(*(backend.stop() for backend in unused if backend not in replaced))

    def _handover_s(self, name: str) -> float:
        engine = self.current.policies.models[split_replica(name)[0]].engine
        return 0.0 if engine is None else engine.drain_handover_s


def _refuse_lockout(old: Version, policies: Policies, settings: Settings) -> None:
    """Raise ReloadFailed where a caller may manage the policies now, and none could afterwards."""
    if not old.policies.admin.principals:
        return
    before = key_ring(old.settings).tenants & {*old.policies.admin.principals}
    if before and not key_ring(settings).tenants & {*policies.admin.principals}:
        raise ReloadFailed(
            "admin.principals would name no caller any more, so no caller could undo this; keep one of "
            f"{', '.join(sorted(before))} there, or restart the gateway to end administration on purpose"
        )


_COMPARED = ("models", "routes", "tiers", "tenants", "probes", "passthrough")


def _lost(old: Policies, new: Policies) -> str:
    """What the old version defined and the new one does not: a file may have been cut between two lines."""
    sections = {name: (getattr(old, name), getattr(new, name)) for name in _COMPARED}
    sections["guardrails.profiles"] = old.guardrails.profiles, new.guardrails.profiles
    found = [f"{name}.{each}" for name, (a, b) in sections.items() for each in a if each not in b]
    more = f" and {len(found) - MAX_LOST} more" if len(found) > MAX_LOST else ""
    return ", ".join(found[:MAX_LOST]) + more


async def in_thread(work: Callable[[], T]) -> T:
    """`asyncio.to_thread` in a thread that nothing waits for at the end if it hangs."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if found.done():  # it took too long
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(cast("T", result))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 - the caller knows which
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True, name="reads policies").start()
    return await found


async def _all_ready(backends: Sequence[Backend]) -> None:
    async with _limit(BACKENDS_TIMEOUT_S, "an engine or encoder was not ready"):
        while not all(backend.client.ready for backend in backends):
            for backend in backends:
                if backend.failure:
                    raise ReloadFailed(backend.failure)
            await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def _limit(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ReloadFailed(f"{what} within {seconds:g} s") from None

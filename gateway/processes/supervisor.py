"""The parent process of `penstock serve`: starts engines, encoders and gateway workers.

Restarts them when they exit or hang, and has them all change to new policies. At shutdown the workers drain
first, then the engines end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.processes.backends import KILL_AFTER_S, backend_names, new_backend
from gateway.processes.keys_watch import KeysWatch
from gateway.processes.managed_process import CannotServe, ManagedProcess
from gateway.processes.messages import StatusReport, Version, encode
from gateway.processes.policy_watch import PolicyWatch
from gateway.processes.reload import Load, Reloader
from gateway.processes.replica_count import ReplicaCounts
from gateway.processes.sockets import BackendSockets
from gateway.processes.specs import worker_command
from gateway.processes.watchdog import kill_when_hung
from gateway.settings import Settings, SettingsError
from gateway.telemetry.shared_counters import new_counter_file
from policies.document import Policies

logger = logging.getLogger(__name__)


class Supervisor:
    """Runs one `penstock serve`. `run` returns the exit code."""

    def __init__(
        self,
        settings: Settings,
        policies: Policies,
        listener: socket.socket,
        on_ready: Callable[[], None],
        load: Load,
        watched: Path | None = None,
        on_served: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_ready` is called once, when every process is ready for the first time.

        `load` reads the policies again, which changes of the folder or file `watched` cause, and `on_served`
        is told when they are served.
        """
        self._listener = listener
        self._on_ready = on_ready
        self._watch = PolicyWatch(watched) if watched is not None else None
        backends = {
            name: new_backend(name, policies, settings, self._send_statuses)
            for name in backend_names(policies)
        }
        shared = _new_shared_files(settings.workers)
        self._peers = BackendSockets(map(str, range(settings.workers)) if settings.workers > 1 else ())
        peers = self._peers.by_name.values()
        settings = msgspec.structs.replace(
            settings,
            socket_paths={name: each.sockets.by_name[name].path for name, each in backends.items()},
            counter_fds=shared[2:],
            fleet_fd=shared[0] if shared else None,
            names_fd=shared[1] if shared else None,
            peer_paths=tuple(each.path for each in peers),
            peer_fds=tuple(each.listener.fileno() for each in peers),
        )
        self._settings = settings
        self._keys = KeysWatch(settings.keys_file, lambda: None) if settings.keys_file else None
        version = Version(1, policies, settings, tuple(sorted(set(policies.metric_names()))))
        load = load if self._watch is None else self._watch.reading(load)
        self._reloader = Reloader(version, backends, load, self._send_statuses, on_served)
        self._workers = [self._worker(number) for number in range(settings.workers)]
        self._reloader.workers = self._workers
        self._stop = asyncio.Event()
        self._signals: list[signal.Signals] = []
        self._forced = asyncio.Event()  # by a second signal

    def _worker(self, number: int) -> ManagedProcess:
        inherited = [fd for each in self._reloader.backends.values() for fd in each.sockets.fds]
        fds = [self._listener.fileno(), *inherited, *self._settings.counter_fds]
        shared = self._settings.fleet_fd, self._settings.names_fd
        fds += [fd for fd in shared if fd is not None]
        fds += [*self._peers.fds, *self._settings.peer_fds[number : number + 1]]
        command = worker_command(number, fds, self._version, self._encode_statuses)
        worker = ManagedProcess(command, lambda progress: None)
        worker.on_progress = lambda progress: self._reloader.on_worker(worker, progress)
        return worker

    def _version(self) -> Version:
        """What a worker that starts serves."""
        version = self._reloader.current
        if self._keys is None:
            return version
        last_good = self._keys.live.current.data.decode()
        settings = msgspec.structs.replace(version.settings, last_good_keys=last_good)
        return msgspec.structs.replace(version, settings=settings)

    async def run(self) -> int:
        """Run until a signal. 0: drained; 2: a configuration cannot work; 128 + n: second signal n."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._reloader.request)
        await self._reloader.start()
        tasks: list[asyncio.Task[None]] = [
            asyncio.create_task(each.run(), name=each.command.name) for each in self._workers
        ]
        tasks += [asyncio.create_task(kill_when_hung(worker, worker)) for worker in self._workers]
        tasks.append(asyncio.create_task(self._wait_ready()))
        tasks.append(asyncio.create_task(ReplicaCounts(self._reloader, self._send_statuses).run()))
        if self._watch is not None:
            tasks.append(asyncio.create_task(self._watch.run(self._reloader.request)))
        first = [task for backend in self._reloader.backends.values() for task in backend.tasks]
        for task in (*tasks, *first):
            task.add_done_callback(self._on_task_end)
        try:
            await self._stop.wait()
            if self._signals and self._settings.drain_delay_s:
                await self._leave(self._settings.drain_delay_s)
            await self._drain()
            return self._exit_code([*tasks, *first])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._reloader.stop()
            if self._keys is not None:
                self._keys.close()
            for backend in self._reloader.backends.values():
                await backend.stop()
            self._peers.close()

    def stop(self) -> None:
        """Let `run` drain and return, as after a signal."""
        self._stop.set()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._stop.set()

    def _exit_code(self, tasks: list[asyncio.Task[None]]) -> int:
        for task in tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if isinstance(error, CannotServe):
                logger.error("%s cannot serve: see its error above", error.name)
                return 2
            if error is not None:
                raise error
        return 128 + self._signals[1] if len(self._signals) > 1 else 0

    async def _leave(self, delay_s: float) -> None:
        """Tell probes, and serve new requests until load balancers have noticed, or a second signal."""
        logger.info(
            "not ready any more; new requests are served for %g s; signal again to exit at once", delay_s
        )
        self._reloader.state = msgspec.structs.replace(self._reloader.state, is_leaving=True)
        self._send_statuses()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._forced.wait()

    async def _drain(self) -> None:
        self._listener.close()  # workers have their own copies; the port is free when all are closed
        if self._signals and not self._forced.is_set():
            logger.info(
                "draining for at most %g s; signal again to exit at once", self._settings.drain_timeout_s
            )
        limit_s = self._settings.drain_timeout_s + KILL_AFTER_S
        await asyncio.gather(*(worker.stop(limit_s) for worker in self._workers))
        backends = self._reloader.backends.values()
        await asyncio.gather(*(backend.process.stop(KILL_AFTER_S) for backend in backends))

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._stop.set()
        if len(self._signals) > 1:
            self._forced.set()
            backends = self._reloader.backends.values()
            for process in (*self._workers, *(backend.process for backend in backends)):
                process.kill()

    def _send_statuses(self) -> None:
        statuses = self._encode_statuses()
        for worker in self._workers:
            worker.send(statuses)

    def _encode_statuses(self) -> bytes:
        backends = self._reloader.backends
        statuses = {name: backend.status() for name, backend in backends.items()}
        return encode(StatusReport(statuses)) + encode(self._reloader.state)

    async def _wait_ready(self) -> None:
        while not all(worker.phase == "ready" for worker in self._workers):
            await asyncio.sleep(0.05)
        self._on_ready()


def _new_shared_files(workers: int) -> tuple[int, ...]:
    """Two of all workers, then one with each one's counters; none for one worker. Raises SettingsError."""
    if workers == 1:
        return ()
    try:
        return tuple(new_counter_file() for _ in range(2 + workers))
    except OSError as error:
        raise SettingsError(
            f"cannot create counter files for {workers} workers ({error}): serve with fewer"
        ) from None

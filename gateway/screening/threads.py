"""Threads for long texts, apart from all others: bounded, shared fairly by tenants, and never waited for."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gateway.errors import RateLimited
from guardrails.cancellation import use_flag

NUM_THREADS = 3
"""They share the interpreter's lock with the event loop, so more would only make it wait longer."""
MAX_WAITING = 64
"""Long texts of one tenant that wait for its turn."""
RETRY_S = 2
MAX_ENCODER_MESSAGES = 2
"""Messages of one tenant in a gateway worker at the same time."""

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Job:
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    is_cancelled: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        use_flag(self.is_cancelled)
        try:
            self.future.set_result(self.work())
        except BaseException as error:  # noqa: BLE001 - for the one that waits
            self.future.set_exception(error)


class EncoderTurns:
    """How many messages of a tenant's long and many texts the encoder has at a time.

    It serves its messages in turns, so that a tenant with more of them would get more of it.
    """

    def __init__(self) -> None:
        self._by_tenant: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, tenant: str) -> asyncio.Semaphore:
        """To be held around each message; keep it as long as the request lasts."""
        found = self._by_tenant.get(tenant)
        if found is None:
            found = self._by_tenant[tenant] = asyncio.Semaphore(MAX_ENCODER_MESSAGES)
        return found


class FairThreads:
    """One job of a tenant runs at a time, and the tenants take turns.

    The threads are daemons: a process that ends does not wait for them.
    """

    def __init__(self, num_threads: int = NUM_THREADS, max_waiting: int = MAX_WAITING) -> None:
        """They start with the first job."""
        self.encoder_turns = EncoderTurns()
        self._num_threads = num_threads
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # the tenant whose turn it is first
        self._running: set[str] = set()
        self._changed = threading.Condition()
        self._num_started = 0

    def of(self, tenant: str) -> TenantThreads:
        """What a tenant may use of them."""
        return TenantThreads(self, tenant)

    async def run(self, work: Callable[[], T], tenant: str) -> T:
        """The result of `work`. Its flag is set (`check_cancelled`) when the caller is cancelled.

        Raises RateLimited for a tenant with too much that waits.
        """
        job = _Job(work)
        with self._changed:
            waiting = self._waiting.setdefault(tenant, deque())
            if len(waiting) >= self._max_waiting:
                raise RateLimited(
                    f"{self._max_waiting} long texts of {tenant!r} are waiting to be screened. Try again in "
                    f"{RETRY_S} s, with fewer requests at the same time.",
                    headers={"retry-after": str(RETRY_S)},
                )
            waiting.append(job)
            if self._num_started < self._num_threads:
                self._num_started += 1
                threading.Thread(target=self._serve, name="screening", daemon=True).start()
            self._changed.notify()
        try:
            result: T = await asyncio.wrap_future(job.future)
            return result
        except asyncio.CancelledError:
            job.is_cancelled.set()
            raise

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (tenant := self._next_tenant()) is None:
                    self._changed.wait()
                job = self._waiting[tenant].popleft()
                self._waiting.move_to_end(tenant)
                if not self._waiting[tenant]:
                    del self._waiting[tenant]
                self._running.add(tenant)
            job.run()
            del job  # its text is not kept while this thread waits
            with self._changed:
                self._running.discard(tenant)
                self._changed.notify()

    def _next_tenant(self) -> str | None:
        return next((tenant for tenant in self._waiting if tenant not in self._running), None)


class TenantThreads:
    """What one tenant's requests may use of the threads and the encoder."""

    def __init__(self, threads: FairThreads, tenant: str) -> None:
        self.tenant = tenant
        self.encoder_turn = threads.encoder_turns.of(tenant)
        self._threads = threads

    async def run(self, work: Callable[[], T], in_thread: bool) -> T:
        """The result of `work`, from a thread where it may take long. Raises RateLimited."""
        return await self._threads.run(work, self.tenant) if in_thread else work()

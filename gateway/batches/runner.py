"""Runs the batches that no other worker runs, those included that a killed worker has left."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from starlette.types import ASGIApp

from gateway.batches.files import FileStore
from gateway.batches.in_process import not_started
from gateway.batches.locks import BatchLocks
from gateway.batches.records import StoredBatch
from gateway.batches.run import BatchRun
from gateway.batches.store import BatchStore
from gateway.errors import ApiError
from gateway.web.asgi_endpoint import log_failure
from policies.batches import BatchesSection

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""How soon a worker sees the batches of other workers."""
ERASE_S = 60.0
PAUSE_S = 5.0
"""After a failure of the store or the disk."""


class BatchRunner:
    """One batch per tenant at a time, all within the policy's `max_concurrency`."""

    def __init__(self, store: BatchStore, files: FileStore, locks: BatchLocks, max_line_bytes: int) -> None:
        self.app: ASGIApp = not_started  # answers the lines; set before `start`
        self._store = store
        self._files = files
        self._locks = locks
        self._max_line_bytes = max_line_bytes
        self._policy = BatchesSection()
        self._slots = asyncio.Semaphore(self._policy.max_concurrency)
        self._running: dict[str, asyncio.Task[None]] = {}  # by tenant
        self._polling: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._next_erasure_s = 0.0

    def use(self, policy: BatchesSection) -> None:
        """Apply a section of the policies to lines that are asked from now on."""
        if policy.max_concurrency != self._policy.max_concurrency:
            self._slots = asyncio.Semaphore(policy.max_concurrency)
        self._policy = policy

    def wake(self) -> None:
        """There is a new batch: look for it now."""
        self._woken.set()

    async def start(self) -> None:
        """Look for batches from now on."""
        self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        """Stop. Lines in flight are asked again by the next that runs their batch."""
        tasks = [*self._running.values(), *([self._polling] if self._polling else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._locks.close()

    async def _poll(self) -> None:
        while True:
            try:
                if self._store.exists():
                    await self._look()
            except (ApiError, OSError) as error:
                logger.error("batches cannot be looked for: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            self._woken.clear()

    async def _look(self) -> None:
        for number, tenant in await self._store.open_batches():
            if tenant not in self._running and self._locks.try_take(number):
                self._running[tenant] = asyncio.create_task(self._run(tenant, number))
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_erasure_s:
            self._next_erasure_s = now_s + ERASE_S
            await self._files.erase_old()
            await self._store.erase_old(self._policy.ttl_s)

    async def _run(self, tenant: str, number: int) -> None:
        try:
            stored = await self._store.at(number)
            if stored.batch.is_open:  # another worker may have ended it before its lock was free
                await self._new_run(stored).run()
        except Exception as failure:  # noqa: BLE001 - the next attempt goes on where this one ended
            log_failure(failure, f"of batch {number}")
            await asyncio.sleep(PAUSE_S)
        finally:
            self._locks.release(number)
            del self._running[tenant]
            self.wake()

    def _new_run(self, stored: StoredBatch) -> BatchRun:
        return BatchRun(
            stored,
            self._store,
            self._files,
            self.app,
            self._slots,
            self._policy,
            max_line_bytes=self._max_line_bytes,
        )

"""Entries shared by replicas through Redis. Each replica answers from its own memory, which follows a stream.

An entry is a hash that expires with it; a stream tells the other replicas what was added and forgotten. A new
replica loads all entries, then follows. While Redis is slow or away, requests go on without it; what cannot
be read there is removed, counted and passed over.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from numpy import float16
from numpy.typing import NDArray
from redis.exceptions import OutOfMemoryError, RedisError

from backend.kept_running import keep_running
from cache.circuit_breaker import CircuitBreaker
from cache.entry import Entry, Selector
from cache.evidence import Verdict
from cache.memory_store import MemoryStore
from cache.redis_commands import Found, RedisCommands, connect
from cache.redis_entries import KEY_BYTES, Change, Undecodable, decode_change, why
from cache.semantic_cache import StoreUnavailable

LOG = logging.getLogger("penstock.cache")

LOOK_UP_LIMIT_S = 0.005
BREAKER_OPEN_S = 2.0
RETRY_S = 1.0
BLOCK_MS = 250
CLOSE_LIMIT_S = 1.0
SOCKET_TIMEOUT_S = 5.0
MAX_PENDING = 1000
"""Changes that wait for Redis; the oldest are dropped beyond."""
_FAILURES = (RedisError, OSError, TimeoutError)


def _ignore(_: str) -> None:
    """Count no fault."""


class RedisStore:
    """Copies what is added to `memory` to Redis, and what others add there to `memory`."""

    def __init__(
        self,
        url: str,
        prefix: str,
        memory: MemoryStore,
        now_s: Callable[[], float],
        on_fault: Callable[[str], None] = _ignore,
    ) -> None:
        """`url` may hold a password and is never logged. Connects when it is started.

        `on_fault` gets "entry_skipped", "change_skipped", "unavailable" or "restarted".
        """
        self.num_dropped = 0
        self._memory = memory
        self._now_s = now_s
        self._on_fault = on_fault
        self._commands = RedisCommands(prefix, on_fault)
        self._origin = os.urandom(8)
        self._reader = connect(url, SOCKET_TIMEOUT_S)  # look-ups never wait for writes
        self._writer = connect(url, SOCKET_TIMEOUT_S)
        self._breaker = CircuitBreaker(BREAKER_OPEN_S)
        self._pending: deque[tuple[Entry, dict[str, bytes], Verdict | None]] = deque()
        self._has_pending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._look_ups: set[asyncio.Task[Entry | None]] = set()
        self._last: bytes | None = None  # the latest change that was applied
        self._failing: set[str] = set()
        self._is_closing = False

    async def start(self) -> None:
        """Follow the others, and write, in the background."""
        for name, work in (("follower", self._follow), ("writer", self._write)):
            running = keep_running(f"the cache's {name}", work, LOG, lambda: self._on_fault("restarted"))
            self._tasks.append(asyncio.create_task(running))

    async def close(self) -> None:
        """Stop; writes what is pending if Redis takes it at once."""
        self._is_closing = True
        self._has_pending.set()
        running = {*self._tasks, *self._look_ups}
        if running:  # a command that is cancelled would leave its connection open
            await asyncio.wait(running, timeout=CLOSE_LIMIT_S)
        for task in running:
            task.cancel()
        with suppress(*_FAILURES):
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self._write_pending()
        for client in (self._reader, self._writer):
            with suppress(*_FAILURES):
                await client.aclose()

    async def get(self, key: bytes) -> Entry | None:
        """The entry of this key, which is in memory then; None also where Redis does not answer in time."""
        if not self._breaker.allows_call():
            return None
        look_up = asyncio.create_task(self._look_up(key))
        self._look_ups.add(look_up)
        look_up.add_done_callback(self._look_ups.discard)
        done, _ = await asyncio.wait({look_up}, timeout=LOOK_UP_LIMIT_S)
        if not done:  # it goes on: to cancel it would break its connection
            self._breaker.record(is_success=False)
            return None
        return look_up.result()

    async def _look_up(self, key: bytes) -> Entry | None:
        try:
            found = await self._commands.get(self._reader, [key])
        except _FAILURES:
            self._breaker.record(is_success=False)
            return None
        self._breaker.record(is_success=True)
        return self._keep(found)

    def put(self, entry: Entry, vector: NDArray[float16] | None) -> None:
        """Tell the others of an entry, soon."""
        self._enqueue(entry, {"vector": b"" if vector is None else vector.tobytes()}, None)

    def update(self, entry: Entry, verdict: Verdict) -> None:
        """Tell the others of a verdict, which the entry has already, soon."""
        self._enqueue(entry, {}, verdict)

    def _enqueue(self, entry: Entry, fields: dict[str, bytes], verdict: Verdict | None) -> None:
        if len(self._pending) == MAX_PENDING:
            self._pending.popleft()
            self.num_dropped += 1
        self._pending.append((entry, fields, verdict))
        self._has_pending.set()

    async def forget(self, selector: Selector) -> int:
        """Remove matching entries from Redis and every replica; their number. Raises StoreUnavailable."""
        self._drop_pending(selector)
        change = Change(self._origin, selector=selector)
        try:
            try:
                await self._commands.tell(self._writer, change)
            except OutOfMemoryError:
                found = await self._delete(selector)  # makes room, perhaps
                await self._commands.tell_without_memory(self._writer, change)
                return found
            return await self._delete(selector)
        except _FAILURES as error:
            raise StoreUnavailable(why(error)) from None

    async def _delete(self, selector: Selector) -> int:
        if selector.kind == "entry":
            asked = [selector.key] if len(selector.key) == KEY_BYTES else []
            found = await self._commands.get(self._writer, asked)
            keys = [entry.key for entry, _ in found if selector.matches(entry)]
        else:
            keys = [
                entry.key async for entry, _ in self._commands.all(self._writer) if selector.matches(entry)
            ]
        return await self._commands.delete(self._writer, keys)

    async def _write(self) -> None:
        while not self._is_closing:
            await self._has_pending.wait()
            try:
                await self._write_pending()
                self._succeeded("write")
            except _FAILURES as error:
                self._failed("write", error)
                await asyncio.sleep(RETRY_S)

    async def _write_pending(self) -> None:
        while self._pending:
            entry, fields, verdict = self._pending[0]
            try:
                change = Change(self._origin, entry.key, verdict=verdict)
                await self._commands.put(self._writer, entry, fields, change)
            except (ValueError, TypeError):  # it cannot be encoded: the others do without it
                self._on_fault("entry_skipped")
            if self._pending and self._pending[0][1] is fields:  # else it was dropped meanwhile
                self._pending.popleft()
        self._has_pending.clear()

    async def _follow(self) -> None:
        """Load all entries, then apply each change; from where it was after a failure."""
        while not self._is_closing:
            try:
                await self._load()
                self._succeeded("follow")
                await self._apply_changes()
            except Undecodable:  # the log itself, which is a new one now
                self._last = None
            except _FAILURES as error:
                self._failed("follow", error)
                await asyncio.sleep(RETRY_S)

    async def _load(self) -> None:
        """Load all entries, unless the log still has all changes since the last that was applied.

        What Redis has no more was forgotten or lost while this replica did not follow: it goes.
        """
        oldest, newest = await self._commands.ends_of_log(self._writer)
        if self._last is not None and oldest and _order(oldest) <= _order(self._last) <= _order(newest):
            return
        before = set(self._memory.keys()) - {entry.key for entry, _, _ in self._pending}
        async for found in self._commands.all(self._writer):
            self._add(*found)
            before.discard(found[0].key)
        for key in before:
            self._memory.remove(key)
        self._last = newest or b"0-0"

    async def _apply_changes(self) -> None:
        """Returns when changes may have been missed, as the stream is bounded, or when the store closes."""
        while not self._is_closing:
            assert self._last is not None
            since = self._last
            changes = await self._commands.changes(self._writer, since, BLOCK_MS)
            # Asked after reading: a log that still begins at `since` or before lost nothing that follows.
            oldest = (await self._commands.ends_of_log(self._writer))[0] if changes else b""
            for number, fields in changes:
                try:
                    await self._apply(decode_change(fields))
                except Undecodable:
                    self._on_fault("change_skipped")
                self._last = number
            if oldest and _order(oldest) > _order(since):
                self._last = None
                return

    async def _apply(self, change: Change) -> None:
        if change.origin == self._origin:
            return
        if change.verdict is not None:
            section, max_error_rate, is_right, tenant = change.verdict
            self._memory.evidence.record(section, max_error_rate, tenant, is_right=is_right)
        if change.selector is not None:
            self._drop_pending(change.selector)
            self._memory.forget(change.selector, self._now_s())
        else:
            self._keep(await self._commands.get(self._writer, [change.key]))

    def _drop_pending(self, selector: Selector) -> None:
        self._pending = deque(each for each in self._pending if not selector.matches(each[0]))

    def _keep(self, found: list[Found]) -> Entry | None:
        return self._add(*found[0]) if found else None

    def _add(self, entry: Entry, vector: NDArray[float16] | None) -> Entry | None:
        """Keep an entry of Redis in memory, if memory admits it."""
        if entry.expires_s <= self._now_s():
            return None
        try:
            self._memory.add(entry, vector)
        except ValueError:  # its vector is of another encoder
            self._on_fault("entry_skipped")
            return None
        return entry

    def _failed(self, work: str, error: Exception) -> None:
        if not self._failing:
            LOG.warning("Redis fails: %s; the cache goes on without it", why(error))
        self._on_fault("unavailable")
        self._failing.add(work)

    def _succeeded(self, work: str) -> None:
        if self._failing == {work}:
            LOG.warning("Redis answers again")
        self._failing.discard(work)


def _order(number: bytes) -> tuple[int, int]:
    """A stream's ids compare by time, then by sequence."""
    time_ms, _, sequence = number.partition(b"-")
    return int(time_ms), int(sequence)

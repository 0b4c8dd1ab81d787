"""Entries shared by replicas through Redis. Each replica answers from its own memory, which follows a stream.

An entry is a hash that expires with it; a stream tells the other replicas what was added and forgotten. A new
replica loads all entries, then follows. While Redis is slow or away, requests go on without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from numpy import float16
from numpy.typing import NDArray
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cache.circuit_breaker import CircuitBreaker
from cache.entry import Entry, Selector
from cache.evidence import Verdict
from cache.memory_store import MemoryStore
from cache.semantic_cache import StoreUnavailable

LOG = logging.getLogger("penstock.cache")

FORMAT = 3
"""Part of all names in Redis: other versions of this code do not read these entries."""
LOOK_UP_LIMIT_S = 0.005
BREAKER_OPEN_S = 2.0
RETRY_S = 1.0
BLOCK_MS = 250
CLOSE_LIMIT_S = 1.0
SOCKET_TIMEOUT_S = 5.0
MAX_PENDING = 1000
"""Changes that wait for Redis; the oldest are dropped beyond."""
MAX_LOG_LENGTH = 100_000
PAGE = 500
"""Entries or changes that are read at once."""
_FAILURES = (RedisError, OSError, TimeoutError)


class _Change(msgspec.Struct, frozen=True, array_like=True):
    """What the stream tells: an entry was added or judged, or some were forgotten."""

    origin: bytes
    key: bytes = b""
    selector: Selector | None = None
    verdict: Verdict | None = None


class RedisStore:
    """Copies what is added to `memory` to Redis, and what others add there to `memory`."""

    def __init__(self, url: str, prefix: str, memory: MemoryStore, now_s: Callable[[], float]) -> None:
        """`url` may hold a password and is never logged. Connects when it is started."""
        self.num_dropped = 0
        self._memory = memory
        self._now_s = now_s
        self._entries = f"{prefix}:{FORMAT}:entry:".encode()
        self._log = f"{prefix}:{FORMAT}:log"
        self._origin = os.urandom(8)
        self._reader = _client(url)  # look-ups never wait for writes
        self._writer = _client(url)
        self._breaker = CircuitBreaker(BREAKER_OPEN_S)
        self._pending: deque[tuple[Entry, dict[str, bytes], Verdict | None]] = deque()
        self._has_pending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._look_ups: set[asyncio.Task[Entry | None]] = set()
        self._is_failing = False
        self._is_closing = False

    async def start(self) -> None:
        """Follow the others, and write, in the background."""
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._write())]

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
            fields: Any = await self._reader.hmget(self._entries + key, ["entry", "vector"])
        except _FAILURES:
            self._breaker.record(is_success=False)
            return None
        self._breaker.record(is_success=True)
        return self._keep(fields)

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
        found = 0
        self._drop_pending(selector)
        change = msgspec.msgpack.encode(_Change(self._origin, selector=selector))
        try:
            await self._writer.xadd(self._log, {"change": change}, maxlen=MAX_LOG_LENGTH)
            one = self._read([self._entries + selector.key])
            async for name, entry, _ in one if selector.kind == "entry" else self._all_entries():
                if selector.matches(entry):
                    found += await self._writer.delete(name)
        except _FAILURES as error:
            raise StoreUnavailable(type(error).__name__) from None
        return found

    async def _write(self) -> None:
        while not self._is_closing:
            await self._has_pending.wait()
            try:
                await self._write_pending()
                self._succeeded()
            except _FAILURES as error:
                self._failed(error)
                await asyncio.sleep(RETRY_S)

    async def _write_pending(self) -> None:
        while self._pending:
            entry, fields, verdict = self._pending[0]
            name = self._entries + entry.key
            change = msgspec.msgpack.encode(_Change(self._origin, entry.key, verdict=verdict))
            mapping: dict[Any, Any] = {**fields, "entry": msgspec.msgpack.encode(entry)}
            async with self._writer.pipeline(transaction=True) as commands:
                commands.hset(name, mapping=mapping)
                commands.pexpireat(name, int(entry.expires_s * 1000))
                commands.xadd(self._log, {"change": change}, maxlen=MAX_LOG_LENGTH)
                await commands.execute()
            if self._pending and self._pending[0][1] is fields:  # else it was dropped meanwhile
                self._pending.popleft()
        self._has_pending.clear()

    async def _follow(self) -> None:
        """Load all entries, then apply each change; again from the start after a failure."""
        while not self._is_closing:
            try:
                last = await self._last_change()
                async for _, entry, vector in self._all_entries():
                    self._add(entry, vector)
                self._succeeded()
                await self._apply_changes(last)
            except _FAILURES as error:
                self._failed(error)
                await asyncio.sleep(RETRY_S)

    async def _last_change(self) -> bytes:
        newest: Any = await self._writer.xrevrange(self._log, count=1)
        return bytes(newest[0][0]) if newest else b"0-0"

    async def _apply_changes(self, last: bytes) -> None:
        """Returns when changes were missed, as the stream is bounded, or when the store closes."""
        while not self._is_closing:
            reply: Any = await self._writer.xread({self._log: last}, count=PAGE, block=BLOCK_MS)
            changes = reply[0][1] if reply else []
            for _, fields in changes:
                await self._apply(msgspec.msgpack.decode(fields[b"change"], type=_Change))
            last = changes[-1][0] if changes else last
            if len(changes) == PAGE:
                oldest: Any = await self._writer.xrange(self._log, count=1)
                if oldest and _order(oldest[0][0]) > _order(last):
                    return

    async def _apply(self, change: _Change) -> None:
        if change.origin == self._origin:
            return
        if change.verdict is not None:
            section, max_error_rate, is_right, tenant = change.verdict
            self._memory.evidence.record(section, max_error_rate, tenant, is_right=is_right)
        if change.selector is not None:
            self._drop_pending(change.selector)
            self._memory.forget(change.selector, self._now_s())
        else:
            fields: Any = await self._writer.hmget(self._entries + change.key, ["entry", "vector"])
            self._keep(fields)

    def _drop_pending(self, selector: Selector) -> None:
        self._pending = deque(each for each in self._pending if not selector.matches(each[0]))

    async def _all_entries(self) -> AsyncIterator[tuple[bytes, Entry, bytes]]:
        """Name, entry and vector of all that Redis holds."""
        names: list[bytes] = []
        async for name in self._writer.scan_iter(match=_escaped(self._entries) + b"*", count=PAGE):
            names.append(name)
            if len(names) == PAGE:
                async for found in self._read(names):
                    yield found
                names = []
        async for found in self._read(names):
            yield found

    async def _read(self, names: list[bytes]) -> AsyncIterator[tuple[bytes, Entry, bytes]]:
        async with self._writer.pipeline(transaction=False) as commands:
            for name in names:
                commands.hmget(name, ["entry", "vector"])
            rows = await commands.execute() if names else []
        for name, (entry, vector) in zip(names, rows, strict=True):
            if entry is not None:  # else it has expired
                yield name, msgspec.msgpack.decode(entry, type=Entry), vector or b""

    def _keep(self, fields: list[bytes | None]) -> Entry | None:
        entry, vector = fields
        return None if entry is None else self._add(msgspec.msgpack.decode(entry, type=Entry), vector or b"")

    def _add(self, entry: Entry, vector: bytes) -> Entry | None:
        """Keep an entry of Redis in memory, if memory admits it."""
        if entry.expires_s <= self._now_s():
            return None
        self._memory.add(entry, np.frombuffer(vector, float16) if vector else None)
        return entry

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            LOG.warning("Redis does not answer (%s): the cache goes on without it", type(error).__name__)
        self._is_failing = True

    def _succeeded(self) -> None:
        if self._is_failing:
            LOG.warning("Redis answers again")
        self._is_failing = False


def _client(url: str) -> Redis:
    """Without retries: the callers know when to try again."""
    return Redis.from_url(
        url,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        socket_timeout=SOCKET_TIMEOUT_S,
    )


def _order(number: bytes) -> tuple[int, int]:
    """A stream's ids compare by time, then by sequence."""
    time_ms, _, sequence = number.partition(b"-")
    return int(time_ms), int(sequence)


def _escaped(name: bytes) -> bytes:
    """As SCAN's glob pattern."""
    return b"".join(b"\\" + each if each in b"*?[]\\" else each for each in (bytes([n]) for n in name))

"""Sums in windows of time, shared by the workers of a gateway, or by its replicas, about once a second.

A worker counts in memory, so that no request waits for a store. What others have counted is up to a second
old: limits may be passed by that much. While the store fails, each worker goes on with what it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Protocol

from backend.kept_running import keep_running
from gateway.errors import ApiError

logger = logging.getLogger(__name__)

SYNC_S = 1.0
IDLE_S = 60.0
"""Without any use for this long, the store is not asked."""
KEPT_WINDOWS = 8
"""Windows of each length that are remembered."""
LIMIT_WINDOWS = 3
"""Windows of limits, which may be as many as users: the last two count, and clocks differ."""
MAX_EXCHANGED = 1000
"""Counters in one operation of the store: a longer one would hold others up, or be refused."""

MAX_CLAIMED = 100_000
"""Claims that this worker remembers; the store has them all."""

MINUTE_S = 60
DAY_S = 86_400
"""Begins at midnight UTC."""
MONTH_S = 2_629_746
"""The mean length of a month, which stands for those of the calendar (UTC)."""


class CounterStore(Protocol):
    """Where the sums of all workers are."""

    async def exchange(
        self,
        added: Mapping[str, tuple[float, int]],
        wanted: Collection[str],
        known: Mapping[str, float] = MappingProxyType({}),
        batch: str = "",
    ) -> Mapping[str, float]:
        """Add amounts to counters that expire at a time (UNIX seconds); the sums of those wanted.

        `known`: sums without the amounts, for a store that has lost them. `batch` names the amounts: those
        that are sent again after a failure have been added, or not. Raises ApiError.
        """
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Counters:
    """Use it inside the event loop. A counter's name says what it counts; nothing of a prompt."""

    def __init__(
        self,
        store: CounterStore | None = None,
        now_s: Callable[[], float] = time.time,
        on_fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_fault` gets "unavailable" when the store fails, "restarted" when keeping in sync did."""
        self._store = store
        self.now_s = now_s
        self._on_fault = on_fault
        self._sums: dict[str, float] = defaultdict(float)  # by window and name, what others added included
        self._added: dict[str, float] = defaultdict(float)  # the store does not know of it
        self._telling: dict[str, float] = {}  # it may know
        self._batch = ""
        self._used: set[str] = set()
        self._expiring: dict[int, set[str]] = defaultdict(set)  # by the second
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self._claimed: OrderedDict[str, None] = OrderedDict()
        self._syncing = asyncio.Lock()  # an answer that is overtaken by another would be out of date

    def add(self, name: str, amount: float, window_s: int) -> None:
        """Add to the present window."""
        key = self.key(name, window_s)
        self._sums[key] += amount
        self._added[key] += amount
        self._use(key)

    def key(self, name: str, window_s: int, age: int = 0) -> str:
        """What the store calls the sum of the present window, or of the one that is `age` windows old."""
        return _key(name, _window(self.now_s(), window_s) - age, window_s)

    def know(self, key: str, total: float) -> None:
        """The store has told this sum. Sums only grow: one that is smaller is out of date."""
        untold = self._added.get(key, 0.0)
        self._sums[key] = max(self._sums.get(key, 0.0), total + untold)
        self._use(key)

    def tell_all(self) -> None:
        """Let the store, which has lost its sums, know of all with the next exchange."""
        self._used |= self._sums.keys()

    def untold(self, key: str) -> float:
        """What has been added here and the store may not know."""
        return self._added.get(key, 0.0) + self._telling.get(key, 0.0)

    def total(self, name: str, window_s: int, num_windows: int = 1) -> float:
        """The sum of the present window and those before it, at most KEPT_WINDOWS."""
        now = _window(self.now_s(), window_s)
        return sum(self._read(_key(name, now - age, window_s)) for age in range(num_windows))

    def recent(self, name: str, window_s: int) -> float:
        """The sum of the last `window_s` seconds: of the window before, the part that is not past counts."""
        now_s = self.now_s()
        now = int(now_s) // window_s
        before = self._read(_key(name, now - 1, window_s)) * (1 - now_s % window_s / window_s)
        return before + self._read(_key(name, now, window_s))

    async def claim(self, name: str, ttl_s: int) -> bool:
        """Whether no worker has claimed this name before; while the store fails, this one."""
        key = f"claim:{name}"
        if key in self._claimed:
            return False
        self._claimed[key] = None  # before anything is awaited
        if len(self._claimed) > MAX_CLAIMED:
            self._claimed.popitem(last=False)
        if self._store is None:
            return True
        with contextlib.suppress(ApiError):
            added = {key: (1.0, int(self.now_s()) + ttl_s)}
            sums = await self._store.exchange(added, [key], batch=secrets.token_hex(8))
            return sums.get(key, 1.0) <= 1.0
        return True

    async def sync(self) -> None:
        """Tell the store what was added and learn what others have added."""
        if self._store is None:
            self._forget()
            return
        # One that is cancelled, as when a request cannot wait for it, would leave open what it has told.
        await asyncio.shield(asyncio.create_task(self._sync(self._store)))

    async def _sync(self, store: CounterStore) -> None:
        async with self._syncing:
            if self._telling and not await self._exchange(store):
                return
            waiting, self._used, done = [*self._used], set(), 0
            try:
                while done < len(waiting):
                    if not await self._exchange(store, waiting[done : done + MAX_EXCHANGED]):
                        break
                    done += MAX_EXCHANGED
            finally:
                self._used.update(waiting[done:])
                self._forget()

    async def _exchange(self, store: CounterStore, keys: Sequence[str] = ()) -> bool:
        """Whether the store answers. What it may know is told again first, as the same batch."""
        if not self._telling:
            self._batch = secrets.token_hex(8)
            self._telling = {key: self._added.pop(key) for key in keys if key in self._added}
        told, wanted = self._telling, {*keys, *self._telling}
        known = {key: self._sums[key] - self.untold(key) for key in wanted if key in self._sums}
        added = {key: (amount, expiry(key)) for key, amount in told.items()}
        try:
            sums = await store.exchange(added, wanted, known, self._batch)
        except ApiError as error:
            self._on_fault("unavailable")
            if not self._is_failing:
                logger.warning("counts are not shared: %s", error.message)
            self._is_failing = True
            return False
        self._is_failing, self._telling = False, {}
        for key, found in sums.items():
            self._sums[key] = found + self._added.get(key, 0.0)
        self._used |= {key for key in wanted if key in self._added}
        return True

    async def close(self) -> None:
        """Store what was added."""
        if self._task is not None:
            await end_task(self._task)
        if self._store is not None:
            async with self._syncing:  # what is under way
                is_told = not self._added and not self._telling
            if not is_told:
                await self.sync()
            await self._store.close()

    def _read(self, key: str) -> float:
        self._use(key)
        return self._sums.get(key, 0.0)

    def _use(self, key: str) -> None:
        if key not in self._used:
            self._used.add(key)
            if (at_s := expiry(key)) not in self._expiring and self._store is None:
                self._forget()  # no task does
            self._expiring[at_s].add(key)
        if self._store is not None and self._task is None:
            with contextlib.suppress(RuntimeError):  # outside an event loop, as in a dry run
                loop = asyncio.get_running_loop()
                self._task = loop.create_task(self._watch())

    async def _watch(self) -> None:
        restarted = partial(self._on_fault, "restarted")
        await keep_running("sharing of counts", self._keep_in_sync, logger, restarted)
        self._task = None

    async def _keep_in_sync(self) -> None:
        idle_s = 0.0
        while idle_s < IDLE_S:
            idle_s = 0.0 if self._used else idle_s + SYNC_S
            if self._used:
                await self.sync()
            await asyncio.sleep(SYNC_S)

    def _forget(self) -> None:
        """What has expired, told or not."""
        now_s = self.now_s()
        for at_s in [at_s for at_s in self._expiring if at_s <= now_s]:
            for key in self._expiring.pop(at_s):
                self._sums.pop(key, None)
                self._added.pop(key, None)
                self._used.discard(key)


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it. A client of Redis may take one cancellation for its own timeout."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)


def _window(now_s: float, window_s: int) -> int:
    """The number of a window since 1970."""
    if window_s != MONTH_S:
        return int(now_s) // window_s
    now = datetime.fromtimestamp(now_s, UTC)
    return (now.year - 1970) * 12 + now.month - 1


def rest_of(window_s: int, now_s: float) -> int:
    """Seconds until the present window ends."""
    if window_s != MONTH_S:
        return window_s - int(now_s) % window_s
    years, month = divmod(_window(now_s, MONTH_S) + 1, 12)
    return int(datetime(1970 + years, month + 1, 1, tzinfo=UTC).timestamp()) - int(now_s)


def _key(name: str, window: int, window_s: int) -> str:
    return f"{window_s}:{window}:{name}"


def expiry(key: str) -> int:
    """When the store may forget a sum, in UNIX seconds."""
    window_s, window, name = key.split(":", 2)
    kept = LIMIT_WINDOWS if "_per_" in name.partition(":")[0] else KEPT_WINDOWS
    return (int(window) + kept) * int(window_s)

"""Usage rows: one for each request that has ended, in a database that all workers share. They hold no text.

Receipts wait in memory and are written about once a second: no request waits for the database, and a worker
that is killed loses the receipts of that second. While the database fails they wait, up to MAX_WAITING.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from backend.kept_running import keep_running
from gateway.accounting import usage_sums
from gateway.accounting.counters import DAY_S
from gateway.accounting.receipt import Receipt
from gateway.accounting.usage_sums import TOKENS
from gateway.database.database import Connection, Database, T, Work
from gateway.errors import Unavailable
from policies.usage import UsageSection

logger = logging.getLogger(__name__)

# A request's id is its client's, who may use it twice: `worker` and `serial` tell rows apart.
SCHEMA = """
CREATE TABLE IF NOT EXISTS usage_rows (
    ended_s DOUBLE PRECISION NOT NULL,
    worker TEXT NOT NULL,
    serial BIGINT NOT NULL,
    hour TEXT NOT NULL,
    request_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    user_digest TEXT NOT NULL,
    model TEXT NOT NULL,
    route TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    status BIGINT NOT NULL,
    cache TEXT NOT NULL,
    policy_version TEXT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    cache_write_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    is_estimated BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    machine_seconds DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (ended_s, worker, serial)
);
CREATE INDEX IF NOT EXISTS usage_rows_by_tenant ON usage_rows (tenant, ended_s);
CREATE INDEX IF NOT EXISTS usage_rows_refused ON usage_rows (ended_s) WHERE status >= 400 AND cost_usd = 0;
"""
SCHEMA += usage_sums.SCHEMA
NUM_COLUMNS = 22
_REFUSED = "status >= 400 AND cost_usd = 0"
"""What a client can have without end, and at no cost."""
INTERVAL_S, MAX_PAUSE_S = 1.0, 30.0
"""Between two writes; longer while the database fails."""
BATCH_ROWS = 500
"""Rows of one transaction: with fewer than 32,766 parameters, which is what SQLite takes."""
ERASED_AT_ONCE = 1000
MAX_FAILED_FILLS = 3
"""Tries to count older rows: a server may end what takes long."""
MAX_WAITING = 50_000
MAX_TOKENS = 1 << 40
"""An upstream may say what it likes: sums of eight million rows stay below 2**63."""


class UsageRows:
    """Use it inside one event loop."""

    def __init__(
        self,
        database: Database[Any],
        on_fault: Callable[[str], None] = lambda _: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`on_fault` gets "unavailable" for each write that fails, "dropped" for each row that is lost."""
        self.policy = UsageSection()
        self._database = database
        self._on_fault = on_fault
        self._now_s = now_s
        self._worker = secrets.token_hex(8)  # of this process: a restarted one is another
        self._serials = itertools.count(1)
        self._waiting: deque[tuple[int, Receipt]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_filled = False  # sums have what was written before there were any
        self._num_failed_fills = 0

    @property
    def fault(self) -> str:
        """Why the database failed last; "" when it did not."""
        return self._database.fault

    def receive(self, receipt: Receipt) -> None:
        """Write it soon."""
        if not self.policy.keep_days:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._on_fault("dropped")
            return
        self._waiting.append((next(self._serials), receipt))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def read(self, work: Work[T], tenant: str) -> T:
        """Run `work`, which changes nothing, for a tenant. Raises Unavailable."""
        return await self._database.read(work, tenant)

    async def close(self) -> None:
        """Write what waits, with one try, and close the database."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if not await self._write():
            logger.error("%d rows of usage were not written", len(self._waiting))
            for _ in self._waiting:
                self._on_fault("dropped")
        await self._database.close()

    async def _watch(self) -> None:
        restarted = partial(self._on_fault, "restarted")
        await keep_running("writing of usage", self._write_on, logger, restarted)
        self._task = None

    async def _write_on(self) -> None:
        pause_s = INTERVAL_S
        while self._waiting:
            await asyncio.sleep(pause_s)
            pause_s = INTERVAL_S if await self._write() else min(2 * pause_s, MAX_PAUSE_S)

    async def _write(self) -> bool:
        """Write what waits; whether the database took it.

        A batch that may have been written, as when the connection ended with its commit, is written again:
        the primary key has each row once.
        """
        try:
            if self._waiting and not self._is_filled:
                await self._fill()
            while batch := list(itertools.islice(self._waiting, BATCH_ROWS)):
                await self._database.write(partial(self._insert, batch))
                for _ in batch:
                    self._waiting.popleft()
        except Unavailable:
            self._on_fault("unavailable")
            return False
        return True

    async def _fill(self) -> None:
        """Count older rows in a transaction of its own; without them where that fails again and again."""
        most = usage_sums.most_groups(self.policy.max_bytes, self.policy.keep_days)
        try:
            await self._database.write(lambda connection: usage_sums.fill(connection, most, self._now_s()))
        except Unavailable:
            self._num_failed_fills += 1
            if self._num_failed_fills < MAX_FAILED_FILLS:
                raise
            self._on_fault("unavailable")
            await self._database.write(usage_sums.mark_filled)  # fails as well where nothing can be written
            logger.warning("charts of usage begin now: older rows could not be counted")
        self._is_filled = True

    def _insert(self, batch: Sequence[tuple[int, Receipt]], connection: Connection) -> None:
        most = usage_sums.most_groups(self.policy.max_bytes, self.policy.keep_days)
        row = f"({', '.join('?' * NUM_COLUMNS)})"
        values = [value for serial, receipt in batch for value in self._row(serial, receipt)]
        query = f"INSERT INTO usage_rows VALUES {', '.join([row] * len(batch))}"
        query += " ON CONFLICT DO NOTHING RETURNING serial"
        is_new = {serial for (serial,) in connection.execute(query, values).fetchall()}
        usage_sums.add(connection, [receipt for serial, receipt in batch if serial in is_new], most)
        usage_sums.erase(connection, self._now_s(), self.policy.keep_days)
        _erase(connection, "ended_s < ?", self._now_s() - self.policy.keep_days * DAY_S)
        if self._database.used_bytes(connection) > self.policy.max_bytes:
            _ = _erase(connection, _REFUSED) or _erase(connection, "0 = 0")

    def _row(self, serial: int, receipt: Receipt) -> tuple[object, ...]:
        return (
            receipt.ended_s,
            self._worker,
            serial,
            datetime.fromtimestamp(receipt.ended_s, UTC).strftime("%Y-%m-%dT%H"),
            receipt.request_id,
            receipt.tenant,
            receipt.key_id,
            receipt.user,
            receipt.model,
            receipt.route,
            receipt.endpoint,
            receipt.status,
            receipt.cache,
            receipt.policy_version,
            *(min(getattr(receipt, name), MAX_TOKENS) for name in TOKENS),
            int(receipt.is_estimated),
            receipt.cost_usd,
            receipt.machine_seconds,
        )


def _erase(connection: Connection, where: str, *values: object) -> int:
    """Erase the oldest of those rows; how many there were."""
    key = "ended_s, worker, serial"
    oldest = f"SELECT {key} FROM usage_rows WHERE {where} ORDER BY ended_s LIMIT {ERASED_AT_ONCE}"
    return connection.execute(f"DELETE FROM usage_rows WHERE ({key}) IN ({oldest})", values).rowcount

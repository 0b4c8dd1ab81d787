"""Where counters are shared: SQLite for the workers of one gateway, Redis for its replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.redis_entries import why
from gateway.accounting.counters import expiry
from gateway.database.database import Connection, Database
from gateway.errors import Unavailable

SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (
    name TEXT PRIMARY KEY,
    total DOUBLE PRECISION NOT NULL,
    expires_s BIGINT NOT NULL
);
"""
_ADD = """
INSERT INTO counters (name, total, expires_s) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET total = counters.total + excluded.total
"""
SOCKET_TIMEOUT_S = 2.0


class DatabaseCounters:
    """Implements CounterStore over a database with SCHEMA."""

    def __init__(self, database: Database[Any]) -> None:
        self._database = database

    async def exchange(
        self,
        added: Mapping[str, tuple[float, int]],
        wanted: Collection[str],
        known: Mapping[str, float] = MappingProxyType({}),
        batch: str = "",
    ) -> Mapping[str, float]:
        """Add amounts and read sums, in one transaction. A file loses no sum that is `known`."""

        def work(connection: Connection) -> dict[str, float]:
            if added:
                connection.execute("DELETE FROM counters WHERE expires_s <= ?", (int(time.time()),))
            for name, (amount, expires_s) in added.items():
                connection.execute(_ADD, (name, amount, expires_s))
            marks = ", ".join("?" * len(wanted))
            rows = connection.execute(f"SELECT name, total FROM counters WHERE name IN ({marks})", [*wanted])
            return dict(rows.fetchall())

        return await (self._database.write(work) if added else self._database.read(work))

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()


def _ignore(_: str) -> None:
    """Count no fault."""


_EXCHANGE = """
local answer, batch, is_told = {0}, table.remove(KEYS), false
if batch ~= '' then
  is_told = not redis.call('SET', batch, 1, 'NX', 'EX', 86400)
end
for i, name in ipairs(KEYS) do
  local amount, known = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i])
  amount = is_told and 0 or amount
  local kind, found = redis.call('TYPE', name).ok, 0
  if kind == 'string' and redis.call('STRLEN', name) <= 64 then
    found = tonumber(redis.call('GET', name))
  elseif kind ~= 'none' then
    found = nil
  end
  if found == nil or found ~= found or found < 0 or found > 1e300 then
    answer[1] = answer[1] + 1
    redis.call('UNLINK', name)
    found = 0
  end
  local sum = math.max(found, known) + amount
  if sum ~= found then
    redis.call('SET', name, string.format('%.17g', sum), 'EXAT', ARGV[3 * i - 1])
  end
  answer[i + 1] = string.format('%.17g', sum)
end
return answer
"""
"""Adds to counters, and gives those that Redis has lost what a worker knows of them: sums only grow.

A batch that Redis has had before, as one whose answer came too late, is added once.

The answer: how many were no numbers and begin again, then the sums.
"""


class RedisCounters:
    """Implements CounterStore."""

    def __init__(self, url: str, prefix: str, on_fault: Callable[[str], None] = _ignore) -> None:
        """`url` may hold a password and is never logged. Connects on first use.

        `on_fault` gets "value_skipped" for each value that is no number and was replaced.
        """
        self._prefix = f"{prefix}:count:"
        self._on_fault = on_fault
        self._client = Redis.from_url(
            url, socket_connect_timeout=SOCKET_TIMEOUT_S, socket_timeout=SOCKET_TIMEOUT_S
        )
        self._exchange = self._client.register_script(_EXCHANGE)

    async def exchange(
        self,
        added: Mapping[str, tuple[float, int]],
        wanted: Collection[str],
        known: Mapping[str, float] = MappingProxyType({}),
        batch: str = "",
    ) -> Mapping[str, float]:
        """Add amounts and read sums, in one round trip. Raises Unavailable."""
        names = [*added, *(name for name in wanted if name not in added)]
        arguments: list[float] = []
        for name in names:
            amount, expires_s = added.get(name, (0.0, 0))
            sum_known = known.get(name, 0.0)
            arguments += [amount, expires_s or (expiry(name) if sum_known else 0), sum_known]
        if not names:
            return {}
        try:
            told = f"{self._prefix}told:{batch}" if added and batch else ""
            answer = await self._exchange(
                keys=[*(self._prefix + name for name in names), told], args=arguments
            )
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis fails: {why(error)}") from None
        for _ in range(answer[0]):
            self._on_fault("value_skipped")
        sums = {name: float(text) for name, text in zip(names, answer[1:], strict=True)}
        return {name: sums[name] for name in wanted if sums[name]}

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._client.aclose()

"""Where counters are shared: SQLite for the workers of one gateway, Redis for its replicas."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.redis_entries import why
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
MAX_NUMBER_CHARS = 64
"""Length of a counter's text; a longer one is no number."""


class DatabaseCounters:
    """Implements CounterStore over a database with SCHEMA."""

    def __init__(self, database: Database[Any]) -> None:
        self._database = database

    async def exchange(
        self, added: Mapping[str, tuple[float, int]], wanted: Collection[str]
    ) -> Mapping[str, float]:
        """Add amounts and read sums, in one transaction."""

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

    async def exchange(
        self, added: Mapping[str, tuple[float, int]], wanted: Collection[str]
    ) -> Mapping[str, float]:
        """Add amounts and read sums, in one round trip. Raises Unavailable."""
        names = [*wanted]
        try:
            async with self._client.pipeline(transaction=True) as commands:
                for name, (amount, expires_s) in added.items():
                    commands.incrbyfloat(self._prefix + name, amount)
                    commands.expireat(self._prefix + name, expires_s)
                for name in names:  # one command each: a value of another type spoils only its own
                    commands.getrange(self._prefix + name, 0, MAX_NUMBER_CHARS)
                found = await commands.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis fails: {why(error)}") from None
        values = dict(zip(names, map(_number, found[2 * len(added) :]), strict=True))
        broken = [name for name, value in values.items() if value is None]
        refused = dict(zip(added, found[0 : 2 * len(added) : 2], strict=True))
        lost = {name: added[name] for name, result in refused.items() if isinstance(result, Exception)}
        if broken or lost:
            await self._replace(broken, lost)
            values |= {name: amount for name, (amount, _) in lost.items() if name in values}
        return {name: value for name, value in values.items() if value}

    async def _replace(self, broken: Collection[str], lost: Mapping[str, tuple[float, int]]) -> None:
        """Begin counters again that are no numbers, with what was added to them just now.

        It must not raise: the other amounts are counted, and would be counted again.
        """
        for _ in {*broken, *lost}:
            self._on_fault("value_skipped")
        with contextlib.suppress(RedisError, OSError):
            async with self._client.pipeline(transaction=True) as commands:
                for name in {*broken, *lost}:
                    commands.unlink(self._prefix + name)
                for name, (amount, expires_s) in lost.items():
                    commands.set(self._prefix + name, amount, exat=expires_s)
                await commands.execute(raise_on_error=False)

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._client.aclose()


def _number(result: object) -> float | None:
    """A counter's sum, 0.0 where there is none; None for what no counter can be. Sums only grow."""
    if isinstance(result, Exception):
        return None
    assert isinstance(result, bytes)
    if len(result) > MAX_NUMBER_CHARS:
        return None
    try:
        value = float(result or b"0")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None

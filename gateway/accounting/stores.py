"""Where counters are shared: SQLite for the workers of one gateway, Redis for its replicas."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

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
        self, added: Mapping[str, tuple[float, int]], wanted: Collection[str]
    ) -> Mapping[str, float]:
        """See CounterStore."""

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
        """See CounterStore."""
        await self._database.close()


class RedisCounters:
    """Implements CounterStore."""

    def __init__(self, url: str, prefix: str) -> None:
        """`url` may hold a password and is never logged. Connects on first use."""
        self._prefix = f"{prefix}:count:"
        self._client = Redis.from_url(
            url, socket_connect_timeout=SOCKET_TIMEOUT_S, socket_timeout=SOCKET_TIMEOUT_S
        )

    async def exchange(
        self, added: Mapping[str, tuple[float, int]], wanted: Collection[str]
    ) -> Mapping[str, float]:
        """See CounterStore."""
        names = [*wanted]
        try:
            async with self._client.pipeline(transaction=True) as commands:
                for name, (amount, expires_s) in added.items():
                    commands.incrbyfloat(self._prefix + name, amount)
                    commands.expireat(self._prefix + name, expires_s)
                commands.mget([self._prefix + name for name in names])
                found = (await commands.execute())[-1]
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis does not answer ({type(error).__name__})") from None
        return {name: float(value) for name, value in zip(names, found, strict=True) if value is not None}

    async def close(self) -> None:
        """See CounterStore."""
        await self._client.aclose()

"""The commands that a store of entries sends to Redis; each outlives values that are not ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError

from cache.entry import Entry
from cache.redis_entries import (
    KEY_BYTES,
    MAX_ENTRY_BYTES,
    Change,
    Undecodable,
    Vector,
    decode_entry,
    is_wrong_type,
)

FORMAT = 3
"""Part of all names in Redis: other versions of this code do not read these entries."""
MAX_LOG_LENGTH = 100_000
PAGE = 500
"""Entries or changes that are read at once."""
_FIELDS = ("entry", "vector")

Found = tuple[Entry, Vector | None]


def connect(url: str, timeout_s: float) -> Redis:
    """Without retries: the callers know when to try again."""
    return Redis.from_url(
        url,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=timeout_s,
        socket_timeout=timeout_s,
    )


class RedisCommands:
    """Reads and writes below one prefix. All methods raise what redis-py does when Redis fails."""

    def __init__(self, prefix: str, on_fault: Callable[[str], None]) -> None:
        """`on_fault` gets "entry_skipped" or "change_skipped"."""
        self._entries = f"{prefix}:{FORMAT}:entry:".encode()
        self._log = f"{prefix}:{FORMAT}:log"
        self._on_fault = on_fault

    async def get(self, client: Redis, keys: Sequence[bytes]) -> list[Found]:
        """The entries of these keys that are there. Those that cannot be read are removed."""
        names = [self._entries + key for key in keys]
        sizes = await self._sizes(client, names)
        broken = [name for name, size in zip(names, sizes, strict=True) if size is None]
        there = [(key, name) for key, name, size in zip(keys, names, sizes, strict=True) if size]
        async with client.pipeline(transaction=False) as commands:
            for _, name in there:
                commands.hmget(name, [*_FIELDS])
            rows = await commands.execute(raise_on_error=False) if there else []
        found: list[Found] = []
        for (key, name), row in zip(there, rows, strict=True):
            if isinstance(row, Exception) and not is_wrong_type(row):
                raise row
            try:
                entry, vector = (b"", b"") if isinstance(row, Exception) else row
                found.append(decode_entry(key, entry or b"", vector or b""))
            except Undecodable:
                broken.append(name)
        await self._discard(client, broken)
        return found

    async def _sizes(self, client: Redis, names: Sequence[bytes]) -> list[int | None]:
        """Bytes of each entry, 0 where there is none, None for what is too large or no entry at all."""
        async with client.pipeline(transaction=False) as commands:
            for name in names:
                for field in _FIELDS:
                    commands.execute_command("HSTRLEN", name, field)
            found = await commands.execute(raise_on_error=False) if names else []
        sizes: list[int | None] = []
        for each in zip(found[::2], found[1::2], strict=True):
            failed = next((size for size in each if isinstance(size, Exception)), None)
            if failed is not None and not is_wrong_type(failed):
                raise failed
            sizes.append(None if failed is not None or max(each) > MAX_ENTRY_BYTES else each[0])
        return sizes

    async def _discard(self, client: Redis, names: Sequence[bytes]) -> None:
        for _ in names:
            self._on_fault("entry_skipped")
        if names:
            async with client.pipeline(transaction=False) as commands:
                for name in names:
                    commands.unlink(name)
                await commands.execute(raise_on_error=False)  # a read-only replica keeps them

    async def all(self, client: Redis) -> AsyncIterator[Found]:
        """All entries. What another program has below the prefix is left alone."""
        keys: list[bytes] = []
        async for name in client.scan_iter(match=_escaped(self._entries) + b"*", count=PAGE):
            key = name[len(self._entries) :]
            if len(key) == KEY_BYTES:
                keys.append(key)
            if len(keys) == PAGE:
                for found in await self.get(client, keys):
                    yield found
                keys = []
        for found in await self.get(client, keys):
            yield found

    async def put(self, client: Redis, entry: Entry, fields: dict[str, bytes], change: Change) -> None:
        """Write an entry and tell the others, in one transaction."""
        name = self._entries + entry.key
        mapping: dict[Any, Any] = {**fields, "entry": msgspec.msgpack.encode(entry)}
        told = msgspec.msgpack.encode(change)
        for is_last in (False, True):
            async with client.pipeline(transaction=True) as commands:
                commands.hset(name, mapping=mapping)
                commands.pexpireat(name, int(entry.expires_s * 1000))
                commands.xadd(self._log, {"change": told}, maxlen=MAX_LOG_LENGTH)
                results = await commands.execute(raise_on_error=False)
            failed = {at: result for at, result in enumerate(results) if isinstance(result, Exception)}
            if not failed:
                return
            if is_last or not all(map(is_wrong_type, failed.values())):
                raise next(iter(failed.values()))
            for at in failed:
                await self._replace(client, name if at == 0 else self._log)

    async def tell(self, client: Redis, change: Change) -> None:
        """Tell the others of a change."""
        told = msgspec.msgpack.encode(change)
        try:
            await client.xadd(self._log, {"change": told}, maxlen=MAX_LOG_LENGTH)
        except Exception as error:
            if not is_wrong_type(error):
                raise
            await self._replace(client, self._log)
            await client.xadd(self._log, {"change": told}, maxlen=MAX_LOG_LENGTH)

    async def tell_without_memory(self, client: Redis, change: Change) -> None:
        """`tell` where Redis takes nothing new: older changes make room; those who miss them load all."""
        for length in (MAX_LOG_LENGTH // 10, 0):
            await client.xtrim(self._log, maxlen=length, approximate=False)
            try:
                await self.tell(client, change)
            except OutOfMemoryError:
                if not length:
                    raise
            else:
                return

    async def delete(self, client: Redis, keys: Sequence[bytes]) -> int:
        """Remove entries; the number of those that were there."""
        names = [self._entries + key for key in keys]
        pages = [names[start : start + PAGE] for start in range(0, len(names), PAGE)]
        return sum([int(await client.unlink(*page)) for page in pages])

    async def ends_of_log(self, client: Redis) -> tuple[bytes, bytes]:
        """The oldest and the newest change that is told; b"" for none."""
        try:
            oldest: Any = await client.xrange(self._log, count=1)
            newest: Any = await client.xrevrange(self._log, count=1)
        except Exception as error:
            if not is_wrong_type(error):
                raise
            await self._replace(client, self._log)
            return b"", b""
        return (bytes(oldest[0][0]) if oldest else b""), (bytes(newest[0][0]) if newest else b"")

    async def changes(self, client: Redis, last: bytes, block_ms: int) -> list[tuple[bytes, object]]:
        """At most PAGE changes after `last`; waits for the first. Raises Undecodable when there is no log."""
        try:
            reply: Any = await client.xread({self._log: last}, count=PAGE, block=block_ms)
        except Exception as error:
            if not is_wrong_type(error):
                raise
            await self._replace(client, self._log)
            raise Undecodable("the log is no stream") from None
        return list(reply[0][1]) if reply else []

    async def _replace(self, client: Redis, name: bytes | str) -> None:
        """Remove a value of another type from where ours belongs."""
        self._on_fault("entry_skipped" if isinstance(name, bytes) else "change_skipped")
        await client.unlink(name)


def _escaped(name: bytes) -> bytes:
    """The name as a glob pattern of SCAN."""
    return b"".join(b"\\" + each if each in b"*?[]\\" else each for each in (bytes([n]) for n in name))

"""What all workers have set aside, in SQLite or Redis: one worker's operations, run in order, each whole.

A worker owns what it has set aside, under a lease that it renews. When the lease ends, as after a crash,
what it held is free.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.redis_entries import why
from gateway.accounting.counters import Counters, expiry
from gateway.accounting.lines import Line, State, Verdict, decide, used_keys
from gateway.database.database import Connection, Database
from gateway.errors import Unavailable

LEASE_S = 8.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS held (
    name TEXT NOT NULL, owner TEXT NOT NULL, amount BIGINT NOT NULL, PRIMARY KEY (name, owner)
);
CREATE TABLE IF NOT EXISTS leases (owner TEXT PRIMARY KEY, until_s DOUBLE PRECISION NOT NULL);
"""


class Part(msgspec.Struct, array_like=True, frozen=True):
    """A line for the store. Keys are those of `used_keys`."""

    key: str
    before: str
    share: float  # of `before` that counts
    expires_s: int
    name: str
    limit: int  # -1: none
    asked: int
    is_bounded: bool
    is_counted_at_once: bool
    used: int = 0  # of one that ends

    @classmethod
    def of(cls, line: Line, counters: Counters, asked: int = 0, used: int = 0) -> Part:
        """The line now."""
        key, before, share = used_keys(counters, line)
        limit = -1 if line.limit is None else line.limit
        return cls(
            *(key, before, share, expiry(key) if key else 0, line.name, limit, asked),
            *(line.is_bounded, line.is_counted_at_once, used),
        )


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says of a batch. Without a lease nothing was done: register, then ask again."""

    has_lease: bool
    num_owners: int = 1
    verdicts: Sequence[Verdict] = ()
    sums: Mapping[str, float] = {}  # of counters that have changed or were read


class HoldStore(Protocol):
    """Where what is set aside is shared."""

    timeout_s: float
    """How long a request may wait for it."""

    async def run(self, owner: str, reserving: Sequence[Sequence[Part]], ended: Sequence[Part]) -> Answer:
        """Give back and count what has ended, then reserve, each group whole. Raises ApiError."""
        ...

    async def register(self, owner: str, held: Mapping[str, int]) -> int:
        """Renew the lease, and say exactly what is held of each name; returns the number of owners.

        Raises ApiError.
        """
        ...

    async def leave(self, owner: str) -> None:
        """End the lease. Raises ApiError."""
        ...


class DatabaseHolds:
    """Implements HoldStore over a database that has the counters too."""

    timeout_s = 1.0

    def __init__(self, database: Database[Any]) -> None:
        self._database = database

    async def run(self, owner: str, reserving: Sequence[Sequence[Part]], ended: Sequence[Part]) -> Answer:
        """In one transaction."""
        return await self._database.write(lambda connection: _run(connection, owner, reserving, ended))

    async def register(self, owner: str, held: Mapping[str, int]) -> int:
        """In one transaction."""

        def work(connection: Connection) -> int:
            now_s = time.time()
            connection.execute(
                "INSERT INTO leases (owner, until_s) VALUES (?, ?) "
                "ON CONFLICT (owner) DO UPDATE SET until_s = excluded.until_s",
                (owner, now_s + LEASE_S),
            )
            connection.execute("DELETE FROM leases WHERE until_s <= ?", (now_s,))
            gone = "DELETE FROM held WHERE owner = ? OR owner NOT IN (SELECT owner FROM leases)"
            connection.execute(gone, (owner,))
            for name, amount in held.items():
                _hold(connection, owner, name, amount)
            return int(connection.execute("SELECT COUNT(*) FROM leases").fetchone()[0])

        return await self._database.write(work)

    async def leave(self, owner: str) -> None:
        """In one transaction."""

        def work(connection: Connection) -> None:
            connection.execute("DELETE FROM leases WHERE owner = ?", (owner,))
            connection.execute("DELETE FROM held WHERE owner = ?", (owner,))

        await self._database.write(work)


def _run(
    connection: Connection, owner: str, reserving: Sequence[Sequence[Part]], ended: Sequence[Part]
) -> Answer:
    now_s = time.time()
    owners = {name for (name,) in connection.execute("SELECT owner FROM leases WHERE until_s > ?", (now_s,))}
    if owner not in owners:
        return Answer(has_lease=False)
    sums: dict[str, float] = {}
    for part in ended:
        _hold(connection, owner, part.name, -part.asked)
        if part.used and part.key:
            _count(connection, part, part.used)
            sums[part.key] = _sum(connection, part.key)
    verdicts: list[Verdict] = []
    for parts in reserving:
        states = [_state(connection, part, now_s, sums) for part in parts]
        verdict = decide([_line(part) for part in parts], states)
        for part, amount in zip(parts, verdict.granted, strict=False):
            if amount and part.is_counted_at_once:
                _count(connection, part, amount)
                sums[part.key] = sums.get(part.key, 0.0) + amount
            else:
                _hold(connection, owner, part.name, amount)
        verdicts.append(verdict)
    return Answer(has_lease=True, num_owners=len(owners), verdicts=verdicts, sums=sums)


def _line(part: Part) -> Line:
    """The line, as far as `decide` reads it."""
    limit = None if part.limit < 0 else part.limit
    return Line("", "", limit, None, part.asked, part.is_bounded)


def _sum(connection: Connection, key: str) -> float:
    row = connection.execute("SELECT total FROM counters WHERE name = ?", (key,)).fetchone()
    return 0.0 if row is None else float(row[0])


def _state(connection: Connection, part: Part, now_s: float, sums: dict[str, float]) -> State:
    used = 0.0
    if part.key:
        sums[part.key] = _sum(connection, part.key)
        used = sums[part.key] + (part.share * _sum(connection, part.before) if part.before else 0.0)
    row = connection.execute(
        "SELECT SUM(amount) FROM held JOIN leases USING (owner) WHERE name = ? AND until_s > ?",
        (part.name, now_s),
    ).fetchone()
    return State(-int(-used // 1), int(row[0] or 0))


def _count(connection: Connection, part: Part, amount: int) -> None:
    connection.execute(
        "INSERT INTO counters (name, total, expires_s) VALUES (?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET total = counters.total + excluded.total",
        (part.key, amount, part.expires_s),
    )


def _hold(connection: Connection, owner: str, name: str, amount: int) -> None:
    if not amount:
        return
    connection.execute(
        "INSERT INTO held (name, owner, amount) VALUES (?, ?, ?) "
        "ON CONFLICT (name, owner) DO UPDATE SET amount = held.amount + excluded.amount",
        (name, owner, amount),
    )
    connection.execute("DELETE FROM held WHERE name = ? AND owner = ? AND amount <= 0", (name, owner))


_PRELUDE = """
local prefix, owner = ARGV[1], ARGV[2]
local leases, time = prefix .. 'leases', redis.call('TIME')
local now_s = time[1] + time[2] / 1e6
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now_s)) do
  redis.call('ZREM', leases, gone)
end
"""
_RUN = (
    _PRELUDE
    + """
if not redis.call('ZSCORE', leases, owner) then
  return {0}
end
local sums = {}
local function sum(key)
  local found = tonumber(redis.pcall('GET', prefix .. 'count:' .. key) or 0) or 0
  return found == found and found >= 0 and found or 0
end
local function count(part, amount)
  sums[part[1]] = sum(part[1]) + amount
  redis.call('SET', prefix .. 'count:' .. part[1], string.format('%.17g', sums[part[1]]), 'EXAT', part[4])
end
local function hold(part, amount)
  local name = prefix .. 'held:' .. part[5]
  if amount ~= 0 and redis.call('HINCRBY', name, owner, string.format('%d', amount)) <= 0 then
    redis.call('HDEL', name, owner)
  end
end
local function held(part)
  local all, name = 0, prefix .. 'held:' .. part[5]
  local found = redis.call('HGETALL', name)
  for i = 1, #found, 2 do
    if redis.call('ZSCORE', leases, found[i]) then
      all = all + tonumber(found[i + 1])
    else
      redis.call('HDEL', name, found[i])
    end
  end
  return all
end
local reserving, ended = cjson.decode(ARGV[3]), cjson.decode(ARGV[4])
for _, part in ipairs(ended) do
  hold(part, -part[7])
  if part[10] > 0 and part[1] ~= '' then
    count(part, part[10])
  end
end
local told = {}
for n, parts in ipairs(reserving) do
  local states, granted, refused, waits = {}, {}, -1, false
  for i, part in ipairs(parts) do
    local used = 0
    if part[1] ~= '' then
      sums[part[1]] = sum(part[1])
      used = sums[part[1]] + (part[2] ~= '' and part[3] * sum(part[2]) or 0)
    end
    states[i] = {math.ceil(used), held(part)}
  end
  for i, part in ipairs(parts) do
    local limit, asked, is_bounded, left = part[6], part[7], part[8], part[6] - states[i][1]
    if limit >= 0 then
      if asked == 0 and left <= 0 then
        refused = i - 1
      elseif asked > left - states[i][2] then
        if is_bounded or states[i][2] > 0 or left <= 0 then
          refused = i - 1
          waits = is_bounded and asked <= left or not is_bounded and left > 0
        else
          asked = left
        end
      end
    end
    if refused >= 0 then break end
    granted[i] = asked
  end
  if refused >= 0 then granted = {} end
  for i, amount in ipairs(granted) do
    if amount > 0 and parts[i][9] then count(parts[i], amount) else hold(parts[i], amount) end
  end
  told[n] = {refused, waits and 1 or 0, states, granted}
end
local found = {}
for key, value in pairs(sums) do
  found[#found + 1] = key
  found[#found + 1] = string.format('%.17g', value)
end
return {1, redis.call('ZCARD', leases), told, found}
"""
)
_REGISTER = (
    _PRELUDE
    + """
redis.call('ZADD', leases, now_s + ARGV[3], owner)
for name, amount in pairs(cjson.decode(ARGV[4])) do
  if amount > 0 then
    redis.call('HSET', prefix .. 'held:' .. name, owner, string.format('%d', amount))
  else
    redis.call('HDEL', prefix .. 'held:' .. name, owner)
  end
end
return redis.call('ZCARD', leases)
"""
)


class RedisHolds:
    """Implements HoldStore, beside RedisCounters with the same prefix."""

    def __init__(self, url: str, prefix: str, timeout_s: float = 0.05) -> None:
        """`url` may hold a password and is never logged. Connects on first use."""
        self.timeout_s = timeout_s
        self._prefix = f"{prefix}:"
        socket_timeout_s = max(2.0, timeout_s)
        self._client = Redis.from_url(
            url, socket_connect_timeout=socket_timeout_s, socket_timeout=socket_timeout_s
        )
        self._run = self._client.register_script(_RUN)
        self._register = self._client.register_script(_REGISTER)

    async def run(self, owner: str, reserving: Sequence[Sequence[Part]], ended: Sequence[Part]) -> Answer:
        """In one script."""
        try:
            found = await self._run(args=[self._prefix, owner, _json(reserving), _json(ended)])
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis fails: {why(error)}") from None
        if not found[0]:
            return Answer(has_lease=False)
        _, num_owners, told, sums = found
        verdicts = [
            Verdict([State(*each) for each in states], granted, refused, bool(waits))
            for refused, waits, states, granted in told
        ]
        return Answer(
            has_lease=True,
            num_owners=num_owners,
            verdicts=verdicts,
            sums={key.decode(): float(value) for key, value in zip(sums[::2], sums[1::2], strict=True)},
        )

    async def register(self, owner: str, held: Mapping[str, int]) -> int:
        """In one script."""
        try:
            return int(await self._register(args=[self._prefix, owner, LEASE_S, _json(held)]))
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis fails: {why(error)}") from None

    async def leave(self, owner: str) -> None:
        """End the lease, and the connection: what is held goes with it."""
        try:
            await self._client.zrem(f"{self._prefix}leases", owner)
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis fails: {why(error)}") from None
        finally:
            await self._client.aclose()


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)

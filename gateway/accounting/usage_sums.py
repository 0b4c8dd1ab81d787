"""Sums of usage rows by minute, hour and day: charts of a month are read from a few hundred rows.

They are written with the rows, in the same transaction. Times are counted in buckets, as percentiles of sums
cannot be had from percentiles. A sum holds no user, key or text.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256

from gateway.accounting.counters import DAY_S
from gateway.accounting.receipt import Receipt
from gateway.database.database import Connection

logger = logging.getLogger(__name__)

LEVELS = {"minute": 16, "hour": 13, "day": 10}
"""Each with the length of its periods, which begin like "2026-11-28T09:46"."""
KEPT_S = {"minute": 2 * 3600, "hour": 2 * DAY_S}
"""Days are kept as long as the rows."""
PERIOD_S = {"minute": 60, "hour": 3600, "day": DAY_S}
MOST_FILLED = 500_000
"""Rows; they take some seconds, for which other gateways wait."""
SUM_BYTES = 256
"""A sum with its key, about; measured with short names."""
NAMES = ("tenant", "model", "route", "endpoint")
TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
OTHERS = ("(others)",) * len(NAMES)
"""Groups that are one too many in their period."""
ERRORS = (
    "InvalidRequest", "Unauthorized", "Forbidden", "NotFound", "RateLimited", "ServerError", "UpstreamFailed",
    "Unavailable", "TimedOut", "ClientGone", "Cancelled", "other",
)  # fmt: skip
HITS = ("exact", "semantic", "shared")
"""Outcomes of the cache that are answers from it."""
AMOUNTS = ("requests", "cache_hits", *TOKENS, "cost_usd", "machine_seconds")
BOUNDS_S = tuple(float(f"{0.001 * 2 ** (n * 2 / 3):.3g}") for n in range(28))
"""Upper bounds of the buckets, each 1.6 times the one before, up to 4 minutes; one more has none."""
DURATIONS, FIRST_TOKENS = ([f"{name}_{n}" for n in range(len(BOUNDS_S) + 1)] for name in ("took", "first"))
COUNTS = (*AMOUNTS, *(f"error_{name}" for name in ERRORS), *DURATIONS, *FIRST_TOKENS)
_AT = {name: at for at, name in enumerate(COUNTS)}
_TOOK_AT, _FIRST_AT = _AT[DURATIONS[0]], _AT[FIRST_TOKENS[0]]
_KEY = ", ".join(("level", "period", *NAMES))
TABLE = f"usage_sums_{sha256(','.join(COUNTS).encode()).hexdigest()[:8]}"
"""Its columns are in its name: with others than ours no row of usage could be written beside it."""
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
    {", ".join(f"{name} TEXT NOT NULL" for name in ("level", "period", *NAMES))},
    {", ".join(f"{name} DOUBLE PRECISION NOT NULL" for name in COUNTS)},
    PRIMARY KEY ({_KEY})
);
"""
_INSERT = f"INSERT INTO {TABLE} ({_KEY}, {', '.join(COUNTS)}) VALUES ({', '.join('?' * (6 + len(COUNTS)))})"
_ADD = f"{_INSERT} ON CONFLICT ({_KEY}) DO UPDATE SET " + ", ".join(
    f"{name} = {TABLE}.{name} + excluded.{name}" for name in COUNTS
)
_HAS_DAYS = f"SELECT 1 FROM {TABLE} WHERE level = 'day' LIMIT 1"
_COUNTED = {
    "requests": "COUNT(*)",
    "cache_hits": f"SUM(CASE WHEN cache IN {HITS} THEN 1 ELSE 0 END)",
    "error_other": "SUM(CASE WHEN status >= 400 THEN 1 ELSE 0 END)",
}
_FILLED = (*AMOUNTS, "error_other")
_GROUPED = ", ".join(f"{_COUNTED.get(name, f'SUM({name})')} AS {name}" for name in _FILLED)
_FILL = f"""
INSERT INTO {TABLE} ({_KEY}, {", ".join(COUNTS)})
SELECT '{{level}}', '{{period}}',
    {", ".join(f"CASE WHEN place > {{most}} THEN '{OTHERS[0]}' ELSE {name} END" for name in NAMES)},
    {", ".join(f"SUM({name})" if name in _FILLED else "0" for name in COUNTS)}
FROM (
    SELECT {", ".join(NAMES)}, {_GROUPED}, ROW_NUMBER() OVER (ORDER BY COUNT(*) DESC) AS place
    FROM usage_rows WHERE ended_s >= ? AND ended_s < ? GROUP BY {", ".join(NAMES)}
) AS groups GROUP BY 3, 4, 5, 6
"""


def period_of(level: str, at_s: float) -> str:
    """The period of a UNIX time, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M")[: LEVELS[level]]


def most_groups(max_bytes: int, keep_days: int) -> int:
    """Groups of a period, so that all sums take a quarter of this size at most: the rest is for rows."""
    num_periods = sum(kept_s // PERIOD_S[level] + 2 for level, kept_s in KEPT_S.items()) + keep_days + 2
    return max(1, max_bytes // (4 * SUM_BYTES * num_periods))


def add(connection: Connection, receipts: Iterable[Receipt], most: int) -> None:
    """Count receipts whose rows are new, in the order of keys, so that no two gateways deadlock.

    `most`: groups of a period; those that come later are counted as OTHERS.
    """
    minutes: dict[tuple[str, ...], list[float]] = defaultdict(_zeros)
    for receipt in receipts:
        minute = period_of("minute", receipt.ended_s)
        _count(receipt, minutes[minute, receipt.tenant, receipt.model, receipt.route, receipt.endpoint])
    found: dict[tuple[str, ...], list[float]] = defaultdict(_zeros)
    for (minute, *rest), counts in minutes.items():
        for level, length in LEVELS.items():
            key = (level, minute[:length], *rest)
            found[key] = [sum_ + count for sum_, count in zip(found[key], counts, strict=True)]
    for key, counts in sorted(_bounded(connection, found, most).items()):
        connection.execute(_ADD, [*key, *counts])


def fill(connection: Connection, most: int, now_s: float) -> None:
    """Count the rows of a month that were written before there were sums, once.

    A mark is written in the same transaction; another gateway waits for that, and then finds the mark. Rows
    have no times and no class of an error, and no minute is filled. More than MOST_FILLED rows stay
    uncounted: others must be able to write meanwhile.
    """
    if not mark_filled(connection) or connection.execute(_HAS_DAYS).fetchall():
        return
    if connection.execute("SELECT 1 FROM usage_rows LIMIT 1 OFFSET ?", [MOST_FILLED]).fetchall():
        logger.warning("charts of usage begin now: there are more than %s older rows", MOST_FILLED)
        return
    for level, span_s in (("hour", KEPT_S["hour"]), ("day", 30 * DAY_S)):
        length_s = PERIOD_S[level]
        last_s = now_s - now_s % length_s
        for start_s in (last_s - ago_s for ago_s in range(0, span_s + 1, length_s)):
            query = _FILL.format(most=most, level=level, period=period_of(level, start_s))
            connection.execute(query, [start_s, start_s + length_s])


def mark_filled(connection: Connection) -> bool:
    """Say that older rows are counted; False if that was said before."""
    query = f"{_INSERT} ON CONFLICT DO NOTHING RETURNING 1"
    return bool(connection.execute(query, ["filled", "", *[""] * len(NAMES), *_zeros()]).fetchall())


def _bounded(
    connection: Connection, found: Mapping[tuple[str, ...], Sequence[float]], most: int
) -> dict[tuple[str, ...], list[float]]:
    """The same counts, those of new groups of full periods as OTHERS."""
    known: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    bounded: dict[tuple[str, ...], list[float]] = defaultdict(_zeros)
    query = f"SELECT {', '.join(NAMES)} FROM {TABLE} WHERE level = ? AND period = ? LIMIT {most}"
    for own, counts in sorted(found.items()):
        key, period = own, own[:2]
        if period not in known:
            known[period] = {tuple(row) for row in connection.execute(query, list(period)).fetchall()}
        if own[2:] not in known[period] and len(known[period]) >= most:
            key = (*period, *OTHERS)
        known[period].add(key[2:])
        bounded[key] = [sum_ + count for sum_, count in zip(bounded[key], counts, strict=True)]
    return bounded


def erase(connection: Connection, now_s: float, keep_days: int) -> None:
    """Erase what is older than its level is kept."""
    for level in LEVELS:
        kept_s = min(KEPT_S.get(level, keep_days * DAY_S), keep_days * DAY_S)
        before = period_of(level, max(0.0, now_s - kept_s))
        connection.execute(f"DELETE FROM {TABLE} WHERE level = ? AND period < ?", [level, before])


def percentile_s(counts: Sequence[float], share: float, bounds: Sequence[float] = BOUNDS_S) -> float | None:
    """The time that this share of requests is below, estimated inside its bucket; None without requests."""
    rank, below, low = share * sum(counts), 0.0, 0.0
    for count, high in zip(counts, (*bounds, bounds[-1]), strict=True):
        if count and below + count >= rank:
            return low + (high - low) * max(0.0, rank - below) / count
        below, low = below + count, high
    return None


def _zeros() -> list[float]:
    return [0.0] * len(COUNTS)


def _count(receipt: Receipt, sums: list[float]) -> None:
    sums[_AT["requests"]] += 1
    sums[_AT["cache_hits"]] += receipt.cache in HITS
    for name in (*TOKENS, "cost_usd", "machine_seconds"):
        sums[_AT[name]] += getattr(receipt, name)
    if receipt.error_type or receipt.status >= 400:
        sums[_AT[f"error_{receipt.error_type if receipt.error_type in ERRORS else 'other'}"]] += 1
    sums[_TOOK_AT + bisect_left(BOUNDS_S, receipt.duration_s)] += 1
    if receipt.first_token_s is not None:
        sums[_FIRST_AT + bisect_left(BOUNDS_S, receipt.first_token_s)] += 1

"""GET /admin/traffic: requests, errors, times and cost in groups and over time, from the ledger's sums."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.accounting.usage_rows import UsageRows
from gateway.accounting.usage_sums import (
    AMOUNTS,
    BOUNDS_S,
    COUNTS,
    DURATIONS,
    ERRORS,
    FIRST_TOKENS,
    LEVELS,
    TABLE,
    percentile_s,
    period_of,
)
from gateway.admin.access import AdminAccess
from gateway.admin.panels import Panels
from gateway.database.database import Connection
from gateway.exchange.shape import encode
from gateway.requests import refusals
from gateway.telemetry.metrics import Metrics
from gateway.web.http_call import HttpCall

SPANS = {
    "1h": (3600, "minute"),
    "24h": (24 * 3600, "hour"),
    "7d": (7 * 86_400, "day"),
    "30d": (30 * 86_400, "day"),
}
"""Seconds, and the level of the series."""
STEPS_S = {"minute": 60, "hour": 3600, "day": 86_400}
_TIMES = {name: f"SUBSTR(period, 1, {LEVELS[name]})" for name in ("day", "hour")}
GROUPS = {"tenant": "tenant", "model": "model", "route": "route", **_TIMES, "endpoint": "endpoint"}
DEFAULTS = {"since": "24h", "by": "model", "limit": "50"}
MAX_LIMIT = 1000
MAX_LINES = 6
"""Groups that have a series of their own."""
NO_LEDGER = (
    "Nothing is kept: the gateway has no data folder. These are the counts of /metrics since the start; its "
    "operator would set PENSTOCK_DATA_DIR."
)
NOT_KEPT = "Nothing more is kept: the policies say `usage: {keep_days: 0}`."
_SUMS = ", ".join(f"SUM({name})" for name in COUNTS)
_SHARES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


class TrafficQuery(NamedTuple):
    """Which sums, and how they are grouped."""

    since: str  # one of SPANS
    by: str  # one of GROUPS
    limit: int
    now_s: float

    @classmethod
    def read(cls, given: Mapping[str, str], now_s: float) -> TrafficQuery:
        """From the parameters of the URL. Raises InvalidRequest."""
        for name in given:
            if name not in DEFAULTS:
                raise refusals.unknown_field(name, list(DEFAULTS))
        asked = {**DEFAULTS, **given}
        for name, known in (("since", SPANS), ("by", GROUPS)):
            if asked[name] not in known:
                raise refusals.wrong_value(name, f"expected one of {', '.join(known)}", asked[name])
        if asked["by"] == "hour" and SPANS[asked["since"]][1] == "day":
            raise refusals.wrong_value("by", "weeks are told by day; ask for 'day', or for since=24h", "hour")
        limit = asked["limit"]
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LIMIT):
            raise refusals.wrong_value("limit", f"expected 1 to {MAX_LIMIT}")
        return cls(asked["since"], asked["by"], int(limit), now_s)

    def answer(self, connection: Connection) -> dict[str, Any]:
        """Totals, groups, the busiest first or in the order of time, and series."""
        span_s, level = SPANS[self.since]
        since, column = period_of(level, self.now_s - span_s), GROUPS[self.by]
        order = "1" if self.by in _TIMES else "SUM(requests) DESC, 1"

        def sums(columns: str, what: str, more: str) -> list[Any]:
            where = f"WHERE level = ? AND period >= ? GROUP BY {columns} {more}"
            query = f"SELECT {columns}, {what} FROM {TABLE} {where}"
            return connection.execute(query, [level, since]).fetchall()

        groups = sums(column, _SUMS, f"ORDER BY {order} LIMIT {self.limit + 1}")
        known = {period: counts for period, *counts in sums("period", _SUMS, "")}
        ago = range(span_s // STEPS_S[level], -1, -1)
        every = [period_of(level, self.now_s - number * STEPS_S[level]) for number in ago]
        first = {name for name, *_ in groups[:MAX_LINES]}
        lines: dict[str, dict[str, list[float]]] = defaultdict(dict)
        for period, name, *amounts in sums(f"period, {column}", "SUM(requests), SUM(cost_usd)", ""):
            if name in first and self.by not in _TIMES:
                lines[period][name] = amounts
        pairs = sums("route, model", "SUM(requests), SUM(cost_usd)", "ORDER BY SUM(requests) DESC LIMIT 100")
        names = ("route", "model", "requests", "cost_usd")
        return {
            "source": "ledger",
            "since": since,
            "step": level,
            "total": figures([sum(column) for column in zip(*known.values(), strict=True)]),
            "groups": [{"name": row[0], **figures(row[1:])} for row in groups[: self.limit]],
            "has_more": len(groups) > self.limit,
            "series": [{"at": at, "groups": lines[at], **figures(known.get(at, ()))} for at in every],
            "shares": [dict(zip(names, row, strict=True)) for row in pairs],
        }


def figures(sums: Sequence[float]) -> dict[str, Any]:
    """What sums in the order of COUNTS say; percentiles are None without a request."""
    found = dict(zip(COUNTS, sums or [0] * len(COUNTS), strict=True))
    errors = {name: int(count) for name in ERRORS if (count := found[f"error_{name}"])}
    shown: dict[str, Any] = {name: found[name] for name in AMOUNTS}
    shown |= {"errors": sum(errors.values()), "errors_by_class": errors}
    for prefix, names in (("", DURATIONS), ("first_token_", FIRST_TOKENS)):
        counts = [found[name] for name in names]
        shown |= {prefix + name: percentile_s(counts, share, BOUNDS_S) for name, share in _SHARES.items()}
    return shown


def from_metrics(metrics: Metrics, by: str, limit: int) -> dict[str, Any]:
    """Groups by model, endpoint, tenant or route since the start of the gateway, the busiest first."""
    groups: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(float))
    times: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    prefix = f"penstock_{by}_" if by in ("tenant", "route") else "penstock_"
    for name, labels, value in metrics.samples() if by not in _TIMES else ():
        if (group := labels.get(by)) is None or not name.startswith(prefix):
            continue
        what = name.removeprefix(prefix)
        if what == "requests_total":
            groups[group]["requests"] += value
            groups[group]["errors"] += value if labels["status"] != "2xx" else 0
        elif what == "tokens_total":
            groups[group][f"{labels['kind']}_tokens"] += value
        elif what in ("cost_usd_total", "machine_seconds_total"):
            groups[group][what.removesuffix("_total")] += value
        elif what in ("request_duration_seconds_bucket", "time_to_first_token_seconds_bucket"):
            times["first_token_" if "first" in what else "", group][labels["le"]] += value
    for (kind, group), buckets in times.items():
        *bounds, counts = *map(float, [*buckets][:-1]), [*buckets.values()]
        each = [after - before for before, after in zip([0.0, *counts], counts, strict=False)]
        groups[group] |= {kind + name: percentile_s(each, share, bounds) for name, share in _SHARES.items()}
    shown = [{"name": name, **group} for name, group in groups.items()]
    shown.sort(key=lambda group: -group.get("requests", 0.0))
    found = {"source": "metrics", "note": NO_LEDGER, "series": [], "shares": []}
    return found | {"groups": shown[:limit], "has_more": len(shown) > limit}


class TrafficEndpoint:
    """Answers for all tenants, so to operators alone."""

    def __init__(self, access: AdminAccess, rows: UsageRows | None, metrics: Metrics, panels: Panels) -> None:
        self._access = access
        self._rows = rows
        self._metrics = metrics
        self._panels = panels

    async def show(self, call: HttpCall) -> None:
        """What the URL asks for. Raises ApiError."""
        tenant = self._access.look(call).tenant
        query = TrafficQuery.read(call.query, time.time())
        if self._rows is None:
            found = from_metrics(self._metrics, query.by, query.limit)
        else:
            found = await self._rows.read(query.answer, tenant)
            found |= {} if self._rows.policy.keep_days else {"note": NOT_KEPT}
        found |= {"object": "traffic", "by": query.by, "span": query.since}
        await call.respond(encode(found | await self._panels.show(found["shares"], tenant)))

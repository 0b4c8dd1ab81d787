"""GET /v1/usage: what requests came to, in groups, for the caller's tenant; for operators, for all."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gateway.accounting.usage_rows import UsageRows
from gateway.accounting.usage_sums import TOKENS
from gateway.auth import KeyRing
from gateway.database.database import Connection
from gateway.errors import Forbidden, NotFound
from gateway.exchange.shape import encode
from gateway.requests import refusals
from gateway.response_cache.use import HITS, user_digest
from gateway.web.http_call import HttpCall
from policies.tenants import AdminSection

TIMES = {"hour": "hour", "day": "SUBSTR(hour, 1, 10)", "month": "SUBSTR(hour, 1, 7)"}
"""Groups by time, in UTC, each with its column."""
FILTERS = {
    "tenant": "tenant",
    "key": "key_id",
    "user": "user_digest",
    "model": "model",
    "route": "route",
    "endpoint": "endpoint",
    "status": "status",
}
GROUPS = TIMES | FILTERS
_HITS = ", ".join(f"'{outcome}'" for outcome in sorted(HITS))
SUMS = {
    "requests": "COUNT(*)",
    "errors": "SUM(CASE WHEN status >= 400 THEN 1 ELSE 0 END)",
    **{name: f"SUM({name})" for name in TOKENS},
    "cache_hits": f"SUM(CASE WHEN cache IN ({_HITS}) THEN 1 ELSE 0 END)",
    "estimated_requests": "SUM(is_estimated)",
    "cost_usd": "SUM(cost_usd)",
    "machine_seconds": "SUM(machine_seconds)",
}
FLOATS = ("cost_usd", "machine_seconds")
DEFAULT_BY, DEFAULT_SINCE = "tenant,model", "30d"
DEFAULT_LIMIT, MAX_LIMIT = 1000, 10_000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIME_HELP = "expected a duration before now such as 7d, a day such as 2026-11-01, or a time with its zone"


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which rows, and how they are grouped."""

    by: Sequence[str]  # names of GROUPS
    since_s: float
    until_s: float  # rows of this second and later are left out
    where: Mapping[str, str]  # by name of FILTERS
    limit: int

    @classmethod
    def read(cls, given: Mapping[str, str], now_s: float) -> UsageQuery:
        """From the parameters of the URL. Raises InvalidRequest."""
        for name in given:
            if name not in {"by", "since", "until", "limit", *FILTERS}:
                raise refusals.unknown_field(name, ["by", "since", "until", "limit", *FILTERS])
        by = list(dict.fromkeys(filter(None, given.get("by", DEFAULT_BY).split(","))))
        for name in by or [""]:
            if name not in GROUPS:
                raise refusals.wrong_value("by", f"expected some of {', '.join(GROUPS)}, with commas", name)
        limit = given.get("limit", str(DEFAULT_LIMIT))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LIMIT):
            raise refusals.wrong_value("limit", f"expected 1 to {MAX_LIMIT}")
        if not re.fullmatch("[0-9]{0,3}", given.get("status", "")):
            raise refusals.wrong_value("status", "expected a status such as 200")
        since_s = _time_s("since", given.get("since", DEFAULT_SINCE), now_s)
        until_s = _time_s("until", given["until"], now_s) if "until" in given else now_s + 1
        if since_s >= until_s:
            raise refusals.wrong_value("since", "it is not before 'until'; give an earlier time")
        where = {name: given[name] for name in FILTERS if name in given}
        return cls(by, since_s, until_s, where, int(limit))

    def of(self, tenant: str) -> UsageQuery:
        """This query for the rows of one tenant. Raises Forbidden where it asks for another's."""
        if self.where.get("tenant", tenant) != tenant:
            raise Forbidden(
                f"{tenant!r} may see its own usage only, unless the policies name it in admin.principals.",
                param="tenant",
            )
        return replace(self, where={**self.where, "tenant": tenant})

    def totals(self, connection: Connection) -> dict[str, Any]:
        """The sums of each group, in the order of time, the most expensive first. Raises InvalidRequest."""
        where, values = "ended_s >= ? AND ended_s < ?", [self.since_s, self.until_s, *self._values()]
        for name in self.where:
            where += f" AND {FILTERS[name]} = ?"
        times = [f"{GROUPS[name]} ASC" for name in self.by if name in TIMES]
        others = [f"{GROUPS[name]} ASC" for name in self.by if name not in TIMES]
        columns = ", ".join([*(GROUPS[name] for name in self.by), *SUMS.values()])
        groups = ", ".join(GROUPS[name] for name in self.by)
        query = f"SELECT {columns} FROM usage_rows WHERE {where}"
        order = ", ".join([*times, "SUM(cost_usd) DESC", *others])
        query += f" GROUP BY {groups} ORDER BY {order} LIMIT {self.limit + 1}"
        rows = connection.execute(query, values).fetchall()
        return {
            "object": "list",
            "data": [self._group(row) for row in rows[: self.limit]],
            "has_more": len(rows) > self.limit,
            "since": _shown(self.since_s),
            "until": _shown(self.until_s),
        }

    def _values(self) -> list[object]:
        found: list[object] = []
        for name, value in self.where.items():
            if name == "user" and not re.fullmatch("[0-9a-f]{64}", value):
                if "tenant" not in self.where:
                    raise refusals.wrong_value(
                        "user", "name its 'tenant' as well, or give the digest that 'by=user' shows"
                    )
                value = user_digest(self.where["tenant"], value)
            found.append(int(value) if name == "status" else value)
        return found

    def _group(self, row: Sequence[Any]) -> dict[str, Any]:
        sums = dict(zip(SUMS, row[len(self.by) :], strict=True))
        counts = {name: float(n) if name in FLOATS else int(n) for name, n in sums.items()}
        share = counts["estimated_requests"] / counts["requests"]
        return dict(zip(self.by, row, strict=False)) | counts | {"estimated_share": round(share, 4)}


class UsageEndpoint:
    """Answers from the rows of all workers; they are about a second old."""

    def __init__(self, keys: KeyRing, admin: AdminSection, rows: UsageRows | None) -> None:
        self._keys = keys
        self._admin = admin
        self._rows = rows

    async def show(self, call: HttpCall) -> None:
        """The sums of groups: `by`, `since`, `until`, `limit`, and a filter for each. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        query = UsageQuery.read(call.query, time.time())
        if not self._keys.is_open and tenant not in self._admin.principals:
            query = query.of(tenant)
        if self._rows is None:
            raise NotFound(
                "No usage is kept: the gateway has no data folder. Its operator would set PENSTOCK_DATA_DIR.",
                code="usage_not_kept",
            )
        await call.respond(encode(await self._rows.read(query.totals, tenant)))


def _time_s(name: str, text: str, now_s: float) -> float:
    """UNIX time of a parameter."""
    if found := re.fullmatch("([0-9]{1,6})([smhd])", text):
        return max(0.0, now_s - int(found[1]) * _UNITS_S[found[2]])
    try:
        when = datetime.fromisoformat(text.replace(" ", "+"))  # "+" stands for a space in a URL
        if len(text) > len("2026-11-01") and when.tzinfo is None:
            raise refusals.wrong_value(name, _TIME_HELP)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise refusals.wrong_value(name, _TIME_HELP) from None


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

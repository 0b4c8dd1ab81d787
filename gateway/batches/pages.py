"""One page of a tenant's files or batches, in the order in which they were created."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.requests import refusals


@dataclass(frozen=True, slots=True)
class PageQuery:
    """`limit`, `order` and `after` of a list request."""

    limit: int
    is_ascending: bool
    after: str

    @classmethod
    def read(cls, query: dict[str, str], default: int, most: int, order: str = "desc") -> PageQuery:
        """From the parameters of the URL. Raises InvalidRequest."""
        limit, order = query.get("limit", str(default)), query.get("order", order)
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= most):
            raise refusals.wrong_value("limit", f"expected 1 to {most}")
        if order not in ("asc", "desc"):
            raise refusals.wrong_value("order", "expected 'asc' or 'desc'", order)
        return cls(int(limit), order == "asc", query.get("after", ""))

    def rows(
        self, connection: sqlite3.Connection, table: str, columns: str, where: str, values: Sequence[object]
    ) -> tuple[list[Any], bool]:
        """The rows, and whether more follow. `where` holds for all of them, whatever their page.

        Raises InvalidRequest when `after` is the id of none.
        """
        order, sign = ("ASC", ">") if self.is_ascending else ("DESC", "<")
        values = list(values)
        if self.after:
            last = connection.execute(
                f"SELECT number FROM {table} WHERE id = ? AND {where}", (self.after, *values)
            ).fetchone()
            if last is None:
                raise refusals.wrong_value("after", "it is the id of none in this list")
            where += f" AND number {sign} ?"
            values.append(last[0])
        query = f"SELECT {columns} FROM {table} WHERE {where} ORDER BY number {order} LIMIT ?"
        found = connection.execute(query, (*values, self.limit + 1)).fetchall()
        return found[: self.limit], len(found) > self.limit


def listing(entries: Sequence[Any], ids: Sequence[str], *, has_more: bool) -> dict[str, Any]:
    """OpenAI's list object."""
    return {
        "object": "list",
        "data": entries,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }

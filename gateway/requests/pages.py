"""One page of a tenant's files or batches, in the order in which they were created."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from gateway.database.database import Connection
from gateway.errors import InvalidRequest
from gateway.requests import refusals


@dataclass(frozen=True, slots=True)
class PageQuery:
    """`limit`, `order` and `after` of a list request."""

    limit: int
    is_ascending: bool
    after: str

    @classmethod
    def read(
        cls, query: dict[str, str], default: int = 20, most: int = 100, order: str = "desc"
    ) -> PageQuery:
        """From the parameters of the URL. Raises InvalidRequest."""
        limit, order = query.get("limit", str(default)), query.get("order", order)
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= most):
            raise refusals.wrong_value("limit", f"expected 1 to {most}")
        if order not in ("asc", "desc"):
            raise refusals.wrong_value("order", "expected 'asc' or 'desc'", order)
        return cls(int(limit), order == "asc", query.get("after", ""))

    def after_key(self, key: Callable[[str], str]) -> PageQuery:
        """This query, with `after` as a table has it."""
        return replace(self, after=key(self.after)) if self.after else self

    def rows(
        self, connection: Connection, table: str, columns: str, where: str, values: Sequence[object]
    ) -> tuple[list[Any], bool]:
        """The rows, and whether more follow. Raises InvalidRequest as `following`."""
        found = list(self.following(connection, table, columns, where, values))
        return found[: self.limit], len(found) > self.limit

    def following(
        self, connection: Connection, table: str, columns: str, where: str, values: Sequence[object]
    ) -> Iterator[Any]:
        """The rows of the page, and one more where it follows. `where` holds for all, whatever their page.

        Raises InvalidRequest when `after` is the id of none.
        """
        order, sign = ("ASC", ">") if self.is_ascending else ("DESC", "<")
        values = list(values)
        if self.after:
            is_id = self.after.isascii() and self.after.isprintable()  # databases refuse some characters
            last = connection.execute(
                f"SELECT number FROM {table} WHERE {where} AND id = ?", (*values, self.after if is_id else "")
            ).fetchone()
            if last is None:
                raise self._unknown()
            where += f" AND number {sign} ?"
            values.append(last[0])
        with closing(
            connection.execute(
                f"SELECT {columns} FROM {table} WHERE {where} ORDER BY number {order} LIMIT ?",
                (*values, self.limit + 1),
            )
        ) as rows:
            yield from rows

    def _unknown(self) -> InvalidRequest:
        return refusals.wrong_value("after", "it is the id of none in this list")


def listing(entries: Sequence[Any], *, has_more: bool, no_id: str | None = None) -> dict[str, Any]:
    """OpenAI's list object of records or JSON objects. `no_id`: the ids of its ends where it is empty."""
    ids = [entry["id"] if isinstance(entry, dict) else entry.id for entry in (*entries[:1], *entries[-1:])]
    return {
        "object": "list",
        "data": entries,
        "first_id": ids[0] if ids else no_id,
        "last_id": ids[1] if ids else no_id,
        "has_more": has_more,
    }

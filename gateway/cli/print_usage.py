"""`penstock usage`: asks a gateway or reads its file, and prints a table or CSV."""

from __future__ import annotations

import argparse
import contextlib
import csv
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlencode

from gateway.accounting.usage_rows import SCHEMA
from gateway.admin.usage import FLOATS, GROUPS, MAX_LIMIT, UsageQuery
from gateway.cli.connection import Connection
from gateway.cli.gateway_flags import gateway_of
from gateway.database.sqlite import SqliteDatabase
from gateway.errors import ApiError
from gateway.settings import SettingsError

TIMEOUT_S = 60.0
_TITLES = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cached_tokens": "cached",
    "cache_write_tokens": "",
    "reasoning_tokens": "reasoning",
    "cache_hits": "hits",
    "cost_usd": "USD",
    "estimated_requests": "",
    "estimated_share": "estimated",
    "machine_seconds": "machine s",
}
"""Columns of the table that are not named as in JSON; "" for those that it leaves out."""


def from_gateway(options: argparse.Namespace, asked: Mapping[str, str]) -> dict[str, Any]:
    """The answer of a running gateway. Raises SettingsError."""
    query = urlencode({**asked, "limit": MAX_LIMIT})
    return Connection(*gateway_of(options), TIMEOUT_S).call("GET", f"/v1/usage?{query}")


def from_folder(folder: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """The same from the file of a data folder. Raises SettingsError."""
    database = SqliteDatabase(folder, "usage", SCHEMA)
    if not database.exists():
        raise SettingsError(
            f"--data-dir {folder!r} has no usage.sqlite: give the gateway's PENSTOCK_DATA_DIR, or --url "
            "where it has a PENSTOCK_DATABASE_URL"
        )
    try:
        query = UsageQuery.read({**asked, "limit": str(MAX_LIMIT)}, time.time())
        return database.run(query.totals, is_write=False)
    except ApiError as error:
        raise SettingsError(error.message) from None
    except (sqlite3.Error, OSError) as error:
        raise SettingsError(f"{Path(folder, 'usage.sqlite')} cannot be read: {error}") from None


def print_usage(found: Mapping[str, Any], file: str | None, out: TextIO) -> int:
    """Write the table, or CSV to a file. Raises SettingsError."""
    groups: Sequence[dict[str, Any]] = found["data"]
    if file is not None:
        _write_csv(groups, file, out)
    elif groups:
        _write_table(groups, out)
    else:
        out.write(f"no requests from {found['since']} to {found['until']}\n")
    if found["has_more"]:
        sys.stderr.write(f"only the first {len(groups)} groups: narrow --since, --until or --by\n")
    return 0


def _write_csv(groups: Sequence[dict[str, Any]], file: str, out: TextIO) -> None:
    try:
        with contextlib.nullcontext(out) if file == "-" else open(file, "w", encoding="utf-8") as opened:
            writer = csv.DictWriter(opened, groups[0] if groups else [], lineterminator="\n")
            writer.writeheader()
            writer.writerows(groups)
    except OSError as error:
        raise SettingsError(f"--csv {file!r} cannot be written: {error.strerror}") from None


def _write_table(groups: Sequence[dict[str, Any]], out: TextIO) -> None:
    names = [name for name in groups[0] if _TITLES.get(name, name)]
    rows = [[_TITLES.get(name, name) for name in names]]
    rows += [[_cell(name, group[name]) for name in names] for group in groups]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(names, row, widths, strict=True)
        line = "  ".join(text.ljust(w) if name in GROUPS else text.rjust(w) for name, text, w in cells)
        out.write(f"{line.rstrip()}\n")


def _cell(name: str, value: Any) -> str:  # noqa: ANN401 - of JSON
    if name in FLOATS:
        return f"{value:.4f}"
    if name == "estimated_share":
        return f"{value:.0%}"
    return (str(value)[:16] if name == "user" else str(value)) or "-"

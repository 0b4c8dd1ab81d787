"""The `usage` section: how long one row per request is kept, for bills and reports."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class UsageSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row for each request of a known caller, with its tokens, cost and outcome; never text."""

    keep_days: Annotated[
        int, Meta(ge=0, le=3660, description="Days until a row is erased. 0: none is written.")
    ] = 90
    max_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Size of the file that has them. Refused requests are erased first, then the oldest. "
            "It does not bound a PostgreSQL server.",
        ),
    ] = 1 << 30

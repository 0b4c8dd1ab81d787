"""A place in a text."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """What stands between two character offsets."""

    start: int
    end: int
    kind: str

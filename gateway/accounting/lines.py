"""Limits as lines: what one request asks of each, and whether it gets it. Amounts are whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from gateway.accounting.counters import DAY_S, MINUTE_S, MONTH_S, Counters

WINDOWS = {"minute": MINUTE_S, "day": DAY_S, "month": MONTH_S}
CONCURRENT = "concurrent_requests"
KINDS = ("usd", "machine_seconds", "requests", "tokens")
PER_UNIT = {"usd": 10**9, "machine_seconds": 10**6}
"""What is counted in a unit: sums of whole numbers return to exactly 0."""


class Line(NamedTuple):
    """One limit of one tenant, key, user or model, and what a request asks of it.

    `asked` requests are counted at once; what they run at the same time or may cost is set aside.
    """

    field: str  # of `policies.tenants.Limits`
    scope: str  # whose it is, as `tenant:acme`
    limit: int | None  # None: only `soft` is set
    soft: int | None  # beyond it a request is marked
    asked: int = 0
    is_bounded: bool = True  # the request says how long its answer may be

    @property
    def kind(self) -> str:
        """What is counted: `requests`, `tokens`, `usd`, `machine_seconds`, or CONCURRENT."""
        return self.field.rpartition("_per_")[0] or self.field

    @property
    def window_s(self) -> int:
        """The length of the window; 0: there is none."""
        return WINDOWS.get(self.field.rpartition("_")[2], 0)

    @property
    def name(self) -> str:
        """The counter's."""
        return f"{self.field}:{self.scope}"

    @property
    def is_counted_at_once(self) -> bool:
        """Whether what is asked does not return."""
        return self.kind == "requests"


class State(NamedTuple):
    """What a line's counters say."""

    used: int
    held: int  # set aside by requests that run


class Verdict(NamedTuple):
    """Whether a request gets all that it asks."""

    states: Sequence[State]  # before it
    granted: Sequence[int] = ()  # of each line; () when refused
    refused: int = -1  # the first line that has too little
    waits: bool = False  # only what others have set aside is in the way


def decide(lines: Sequence[Line], states: Sequence[State]) -> Verdict:
    """What is asked of all lines, or of none.

    One without a bound gets what is left where nothing else runs: its answer may be as long as that.
    """
    granted: list[int] = []
    for at, (line, (used, held)) in enumerate(zip(lines, states, strict=True)):
        asked = line.asked
        if line.limit is not None:
            left = line.limit - used
            if not asked and left <= 0:
                return Verdict(states, refused=at)
            if asked > left - held:
                if line.is_bounded or held or left <= 0:
                    return Verdict(states, (), at, left > 0 if not line.is_bounded else asked <= left)
                asked = left
        granted.append(asked)
    return Verdict(states, granted)


def wait_s(line: Line, used: int, present: float, now_s: float) -> int:
    """Seconds until a sliding minute has room for what the line asks, if nothing else is used.

    `present`: what of `used` is in the present window. The rest falls to 0 until its end; then that does.
    """
    rest_s = MINUTE_S - now_s % MINUTE_S
    too_much = used + (line.asked if line.is_bounded and line.asked else 1) - (line.limit or 0)
    before = used - min(present, used)
    if too_much <= before:
        return ceil(too_much * rest_s / before)
    return ceil(rest_s + (min(1.0, (too_much - before) / present) * MINUTE_S if present else 0.0))


def used_keys(counters: Counters, line: Line) -> tuple[str, str, float]:
    """The counters of a line's window, and of the one before with the share of it that still counts.

    A minute slides, as estimated from its two windows; days and months begin with those of the calendar.
    """
    if not line.window_s:
        return "", "", 0.0
    key = counters.key(line.name, line.window_s)
    if line.window_s != MINUTE_S:
        return key, "", 0.0
    return key, counters.key(line.name, MINUTE_S, 1), 1 - counters.now_s() % MINUTE_S / MINUTE_S

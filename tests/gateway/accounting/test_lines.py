"""All lines grant what is asked, or none; the first that has too little says why."""

from __future__ import annotations

import pytest

from gateway.accounting.counters import DAY_S, MINUTE_S, MONTH_S, Counters
from gateway.accounting.lines import Line, State, decide, used_keys

SCOPE = "tenant:t"


def tokens(asked: int, *, is_bounded: bool = True, limit: int | None = 100) -> Line:
    return Line("tokens_per_day", SCOPE, limit, None, asked, is_bounded)


@pytest.mark.parametrize(
    ("line", "state", "granted", "waits"),
    [
        (tokens(100), State(0, 0), 100, False),
        (tokens(40), State(50, 10), 40, False),
        (tokens(41), State(50, 10), None, True),
        (tokens(51), State(50, 0), None, False),
        (tokens(0), State(100, 0), None, False),
        (tokens(0), State(99, 1), 0, False),
        (tokens(500, is_bounded=False), State(60, 0), 40, False),
        (tokens(500, is_bounded=False), State(60, 1), None, True),
        (tokens(500, is_bounded=False), State(100, 0), None, False),
        (tokens(10**12, limit=None), State(10**9, 5), 10**12, False),
    ],
)
def test_one_line(line: Line, state: State, granted: int | None, waits: bool) -> None:
    verdict = decide([line], [state])
    assert verdict.granted == ([] if granted is None else [granted]) or (
        granted is None and not verdict.granted
    )
    assert (verdict.refused, verdict.waits) == (-1 if granted is not None else 0, waits)


def test_one_that_refuses_refuses_all() -> None:
    verdict = decide([tokens(1), tokens(2), tokens(1)], [State(0, 0), State(99, 0), State(100, 0)])
    assert (verdict.refused, verdict.granted) == (1, ())


def test_names_and_windows() -> None:
    line = Line("machine_seconds_per_month", SCOPE, 1, None)
    assert (line.kind, line.window_s, line.name) == ("machine_seconds", MONTH_S, f"{line.field}:{SCOPE}")
    assert Line("concurrent_requests", SCOPE, 1, None).window_s == 0
    assert Line("requests_per_minute", SCOPE, 1, None).is_counted_at_once


def test_a_minute_slides_and_a_month_is_the_calendars() -> None:
    now = [1_772_323_199.0]  # the last second of February 2026
    counters = Counters(now_s=lambda: now[0])
    month = Line("usd_per_month", SCOPE, 1, None)
    february = used_keys(counters, month)
    now[0] += 1
    assert used_keys(counters, month) != february
    key, before, share = used_keys(counters, Line("usd_per_minute", SCOPE, 1, None))
    assert key != before and share == 1.0
    now[0] += MINUTE_S / 4
    assert used_keys(counters, Line("usd_per_minute", SCOPE, 1, None)) == (key, before, 0.75)
    now[0] += DAY_S
    assert used_keys(counters, month)[1:] == ("", 0.0)

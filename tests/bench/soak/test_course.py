"""What a soak calls drift, on records that were made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.soak.course import Course
from tests.bench.soak.monitor import Process, Snapshot
from tests.bench.soak.traffic import Sent

BEFORE = Snapshot(0.0, {"engine": Process(1000, 10), "gateway worker": Process(100, 20)}, 0, 0)
AFTER = replace(BEFORE, time_s=100.0)
SENT = [Sent("stream", float(s), 0.1, 1.0, "") for s in range(1, 91)]
STEADY = Course([BEFORE, AFTER], SENT, BEFORE, AFTER)


def test_a_steady_course_has_no_failures() -> None:
    assert STEADY.failures() == []
    assert STEADY.latency_rows()[0]["p95 ratio"] == 1.0
    assert STEADY.process_rows()[-1] == {
        **{"process": "all", "MiB before": 1100 / 2**20, "MiB after": 1100 / 2**20, "growth": 1.0},
        **{"files before": 30, "files after": 30, "pages used": 0, "in flight": 0},
    }


@pytest.mark.parametrize(
    ("course", "expected"),
    [
        (replace(STEADY, after=replace(AFTER, used_pages=2)), "2 pages and 0 requests when idle"),
        (replace(STEADY, after=replace(AFTER, in_flight=1)), "0 pages and 1 requests when idle"),
        (
            replace(STEADY, after=replace(AFTER, processes=BEFORE.processes | {"engine": Process(1040, 10)})),
            "resident memory of engine grew by 4.0%",
        ),
        (
            replace(STEADY, after=replace(AFTER, processes=BEFORE.processes | {"engine": Process(1000, 13)})),
            "engine opened 3 more files",
        ),
        (
            replace(STEADY, after=replace(AFTER, processes={"engine": Process(1000, 10)})),
            "a process has gone or come",
        ),
        (
            replace(STEADY, sent=[replace(each, total_s=1 + each.started_s / 100) for each in SENT]),
            "stream got slower: median 1.53 times the first",
        ),
        (
            replace(STEADY, sent=[*SENT, Sent("tools", 5.0, 0.1, 1.0, "tools: 500")]),
            "unexpected outcome, 1 times: tools: 500",
        ),
    ],
)
def test_each_kind_of_drift_is_named(course: Course, expected: str) -> None:
    assert expected in course.failures()

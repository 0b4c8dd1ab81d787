"""The record of one soak, its tables, and whether something drifted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench import load, report
from tests.bench.soak.monitor import Snapshot
from tests.bench.soak.traffic import Sent

MEMORY_LIMIT = 1.03
LATENCY_LIMIT = 1.15
"""Last third over first third of the median: closed-loop latencies on shared cores vary by some per cent."""


@dataclass(frozen=True)
class Course:
    """What was seen: all snapshots and requests, and the idle moments after the warm-up and at the end."""

    snapshots: Sequence[Snapshot]
    sent: Sequence[Sent]
    before: Snapshot
    after: Snapshot

    def process_rows(self) -> list[report.Row]:
        """Memory and file descriptors of each process when idle, before and after."""
        rows = [
            _process_row(role, was.resident_bytes, now.resident_bytes, was.num_files, now.num_files)
            for role, was in self.before.processes.items()
            if (now := self.after.processes.get(role))
        ]
        was, now = self.before, self.after
        total = _process_row("all", was.resident_bytes, now.resident_bytes, was.num_files, now.num_files)
        return [*rows, total | {"pages used": now.used_pages, "in flight": now.in_flight}]

    def latency_rows(self) -> list[report.Row]:
        """Number of requests, and percentiles of their time in the first and the last third, by kind."""
        return [self._latency_row(kind) for kind in sorted({each.kind for each in self.sent})]

    def failures(self) -> list[str]:
        """A sentence for each thing that drifted, leaked or answered wrongly; empty when all is well."""
        found = [f"unexpected outcome, {n} times: {text}" for text, n in self._problems().most_common(10)]
        for row in self.process_rows():
            if row["growth"] > MEMORY_LIMIT:
                found.append(f"resident memory of {row['process']} grew by {row['growth'] - 1:.1%}")
            if row["files after"] > row["files before"]:
                found.append(f"{row['process']} opened {row['files after'] - row['files before']} more files")
        if set(self.before.processes) != set(self.after.processes):
            found.append("a process has gone or come")
        if self.after.used_pages or self.after.in_flight:
            found.append(f"{self.after.used_pages} pages and {self.after.in_flight} requests when idle")
        for row in self.latency_rows():
            if (row["p50 ratio"] or 0) > LATENCY_LIMIT:
                found.append(f"{row['kind']} got slower: median {row['p50 ratio']:.2f} times the first")
        return found

    def _problems(self) -> Counter[str]:
        return Counter(each.problem for each in self.sent if each.problem)

    def _latency_row(self, kind: str) -> report.Row:
        measured = [each for each in self.sent if each.kind == kind and each.started_s > self.before.time_s]
        end_s = max(each.started_s for each in self.sent)
        third_s = (end_s - self.before.time_s) / 3
        first = [each.total_s for each in measured if each.started_s < self.before.time_s + third_s]
        last = [each.total_s for each in measured if each.started_s > end_s - third_s]
        row: report.Row = {"kind": kind, "requests": len(measured)}
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            was, now = (load.percentile(values, share) if values else None for values in (first, last))
            row |= {f"{name} first ms": was and was * 1e3, f"{name} last ms": now and now * 1e3}
            row |= {f"{name} ratio": now / was if was and now else None}
        return row


def _process_row(name: str, was_bytes: int, now_bytes: int, was_files: int, now_files: int) -> report.Row:
    return {
        **{"process": name, "MiB before": was_bytes / 2**20, "MiB after": now_bytes / 2**20},
        **{"growth": now_bytes / was_bytes, "files before": was_files, "files after": now_files},
    }

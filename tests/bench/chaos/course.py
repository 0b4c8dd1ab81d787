"""The record of one chaos, its tables, and whether every request ended as it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench import load, report
from tests.bench.chaos.killer import Kill
from tests.bench.chaos.outcomes import OUTCOMES, Sent

SHOWN_PROBLEMS = 12


@dataclass(frozen=True)
class Course:
    """What was seen. `kinds` are those that must have had a right answer; `others` failures at the end."""

    sent: Sequence[Sent]
    kills: Sequence[Kill]
    kinds: Sequence[str]
    others: Sequence[str] = field(default_factory=tuple)

    def request_rows(self) -> list[report.Row]:
        """Outcomes by kind, then of all."""
        return [*(self._row(kind, kind) for kind in self.kinds), self._row("all", None)]

    def kill_rows(self) -> list[report.Row]:
        """How often each role was killed, and how long the server then took to be ready."""
        rows: list[report.Row] = []
        for role in sorted({kill.role for kill in self.kills}):
            found = [kill.ready_s for kill in self.kills if kill.role == role]
            times = [each for each in found if each is not None]
            row: report.Row = {"killed": role, "times": len(found)}
            row |= {
                f"ready p{share}, s": load.percentile(times, share / 100) if times else None
                for share in (50, 100)
            }
            rows.append(row)
        return rows

    def failures(self) -> list[str]:
        """A sentence for each thing that must not have been; empty when all is well."""
        problems = Counter(f"{each.kind}: {each.problem}" for each in self.sent if each.outcome == "wrong")
        found = [f"{number} times {text}" for text, number in problems.most_common(SHOWN_PROBLEMS)]
        right = {each.kind for each in self.sent if each.outcome == "right"}
        found += [f"{kind} never had a right answer" for kind in self.kinds if kind not in right]
        found += [f"not ready after the kill of a {kill.role}" for kill in self.kills if kill.ready_s is None]
        return [*found, *self.others]

    def _row(self, name: str, kind: str | None) -> report.Row:
        chosen = [each for each in self.sent if kind in (None, each.kind)]
        times = [each.total_s for each in chosen if each.outcome == "right"]
        outcomes = Counter(each.outcome for each in chosen)
        return {
            **{"kind": name, "requests": len(chosen)},
            **{outcome: outcomes[outcome] for outcome in OUTCOMES},
            "right p99, s": load.percentile(times, 0.99) if times else None,
        }

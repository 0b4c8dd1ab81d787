"""Which requests survive when running a plan fails."""

from __future__ import annotations

import pytest

from backend.engine.runner_protocol import RunnerFacts, StepResult
from backend.engine.step_recovery import MAX_FAILED_STEPS, StepRecovery
from backend.types import Plan, ScheduledChunk, Sequence
from tests.backend.speculative.sequences import running


class Scripted:
    """Draws 7 for every chunk; those with drafts are unsound, and `failing` sequences raise when alone."""

    facts: RunnerFacts

    def __init__(self, failing: set[Sequence]) -> None:
        self.failing = failing
        self.forgotten: list[Sequence] = []

    def run(self, plan: Plan) -> StepResult:
        if len(plan.chunks) == 1 and plan.chunks[0].sequence in self.failing:
            raise MemoryError("nothing left")
        return StepResult([7] * len(plan.chunks), [not chunk.draft for chunk in plan.chunks])

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence)


def chunk_of(sequence: Sequence, draft: tuple[int, ...] = ()) -> ScheduledChunk:
    return ScheduledChunk(sequence, sequence.num_computed_tokens, 1 + len(draft), draft)


def test_who_fails_again_without_its_draft_fails_alone() -> None:
    bad, good, plain = (running([1, 2], [3]) for _ in range(3))
    runner = Scripted({bad})
    plan = Plan([chunk_of(bad, (5,)), chunk_of(plain), chunk_of(good, (5, 6))], num_drafts=3)
    done, result, failed = StepRecovery(runner).run(plan)
    assert done.chunks == [chunk_of(plain), chunk_of(good)] and done.num_drafts == 0
    assert (result.token_ids, result.is_sound) == ([7, 7], [True, True])
    assert list(failed) == [bad] and "its log" in failed[bad]
    assert runner.forgotten == [bad, good]


def test_lone_requests_that_fail_in_a_row_are_the_devices_fault_and_others_are_not() -> None:
    bad, good = running([1, 2], [3]), running([1, 2], [3])
    recovery = StepRecovery(Scripted({bad}))
    for _ in range(2 * MAX_FAILED_STEPS):
        _, _, failed = recovery.run(Plan([chunk_of(bad)]))
        assert list(failed) == [bad]
        assert not recovery.run(Plan([chunk_of(good)]))[2]
    for _ in range(MAX_FAILED_STEPS - 1):
        recovery.run(Plan([chunk_of(bad)]))
    with pytest.raises(MemoryError):
        recovery.run(Plan([chunk_of(bad)]))

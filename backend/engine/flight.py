"""A step in flight: launched and drawn, not read yet; what is counted of it, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass

from backend.engine.runner_protocol import LaunchedStep, StepResult
from backend.types import Plan, SequenceStatus


@dataclass(slots=True)
class Flight:
    """The step that the device computes while the host plans the next one."""

    plan: Plan  # without drafts
    step: LaunchedStep

    def take_off(self) -> None:
        """Count its tokens as computed, and those that it draws as pending: the next step is planned."""
        for chunk in live(self.plan).chunks:
            sequence = chunk.sequence
            sequence.num_computed_tokens = end = chunk.start + chunk.num_tokens
            sequence.num_pending = int(end >= len(sequence.tokens))

    def land(self) -> tuple[Plan, StepResult]:
        """Wait for the step. Returns the part of its plan that still matters, and its result.

        Chunks of sequences that ended or were preempted meanwhile are dropped, with what they drew. Raises
        what the device raises; `turn_back` then.
        """
        result = self.step.read()
        plan = live(self.plan)
        for chunk in plan.chunks:
            chunk.sequence.num_pending = 0
        if plan is self.plan:
            return plan, result
        kept = {chunk.sequence for chunk in plan.chunks}
        drawn = [i for i, chunk in enumerate(self.plan.sampled) if chunk.sequence in kept]
        is_sound = [
            ok for chunk, ok in zip(self.plan.chunks, result.is_sound, strict=True) if chunk.sequence in kept
        ]
        return plan, result.select(drawn, is_sound)

    def turn_back(self) -> Plan:
        """The step failed: none of its tokens is computed. Returns the part of its plan that matters."""
        plan = live(self.plan)
        for chunk in plan.chunks:
            chunk.sequence.num_computed_tokens, chunk.sequence.num_pending = chunk.start, 0
        return plan


def live(plan: Plan) -> Plan:
    """A plan without the chunks of sequences that have ended or were preempted since."""
    chunks = [chunk for chunk in plan.chunks if chunk.sequence.status is SequenceStatus.RUNNING]
    if len(chunks) == len(plan.chunks):
        return plan
    return Plan(chunks, plan.preempted, sum(len(chunk.draft) for chunk in chunks))

"""Running a plan so that an error hits the request that has it: by itself, and without drafts, once more."""

from __future__ import annotations

import logging

from backend.engine.base import Runner, StepResult
from backend.errors import AdapterError
from backend.types import Plan, ScheduledChunk, Sequence

logger = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""So many steps in a row in which nothing could be computed: the device or the model is broken."""

_UNSOUND = "the model gave no finite logits for this request; check the checkpoint or use dtype float32"
_FAILED = "the engine could not compute this request; its log names the cause"


class Attempts:
    """Drives a runner. Counts steps that fail."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._num_failed_steps = 0

    def run(self, plan: Plan) -> tuple[Plan, StepResult, dict[Sequence, str]]:
        """What was computed of the plan, its result, and why the others' requests must end.

        What these computed is not to be committed: their pages may hold anything. Raises what the runner
        raised when nobody could be computed: in a plan of several chunks, or in several steps in a row.
        """
        failed: dict[Sequence, str] = {}
        try:
            result = self._runner.run(plan)
            self._num_failed_steps = 0
        except Exception as error:  # noqa: BLE001 - any failure of a model may be one request's fault
            plan, result = self._run_apart(plan, error, failed)
        if all(result.is_sound):
            return plan, result, failed
        if plan.num_drafts:
            plan, result = self._retry_without_drafts(plan, result, failed)
        sound = [chunk for chunk, ok in zip(plan.chunks, result.is_sound, strict=True) if ok]
        kept = {chunk.sequence for chunk in sound}
        result = _select(result, [i for i, c in enumerate(plan.sampled) if c.sequence in kept])
        failed |= {chunk.sequence: _UNSOUND for chunk in plan.chunks if chunk.sequence not in kept}
        return _plan(sound, plan.preempted), result, failed

    def _run_apart(
        self, plan: Plan, error: Exception, failed: dict[Sequence, str]
    ) -> tuple[Plan, StepResult]:
        """Run each chunk by itself, without its draft, to find whose error it is."""
        done: list[ScheduledChunk] = []
        merged = StepResult([], [])
        if len(plan.chunks) == 1 and not plan.num_drafts:
            _note(plan.chunks[0], error, failed)
        else:
            for chunk in plan.chunks:
                self._run_alone(chunk, done, merged, failed)
        is_broken = not done and not isinstance(error, AdapterError)  # that one breaks nothing else
        self._num_failed_steps = self._num_failed_steps + 1 if is_broken else 0
        if is_broken and (len(plan.chunks) > 1 or self._num_failed_steps == MAX_FAILED_STEPS):
            raise error
        return Plan(done, plan.preempted), merged

    def _retry_without_drafts(
        self, plan: Plan, result: StepResult, failed: dict[Sequence, str]
    ) -> tuple[Plan, StepResult]:
        """Compute chunks again whose draft may be what spoiled them."""
        done: list[ScheduledChunk] = []
        merged = StepResult([], [])
        index = 0
        for chunk, is_sound in zip(plan.chunks, result.is_sound, strict=True):
            keep = [index] if chunk.samples else []
            index += len(keep)
            if chunk.draft and not is_sound:
                self._runner.forget(chunk.sequence)  # its penalties have counted what was drawn
                self._run_alone(chunk, done, merged, failed)
                continue
            part = _select(result, keep)
            part.is_sound = [is_sound]
            done.append(chunk)
            _append(merged, part)
        return _plan(done, plan.preempted), merged

    def _run_alone(
        self,
        chunk: ScheduledChunk,
        done: list[ScheduledChunk],
        merged: StepResult,
        failed: dict[Sequence, str],
    ) -> None:
        """Run a chunk by itself, without its draft; it comes to `done` and `merged`, or to `failed`."""
        chunk = ScheduledChunk(chunk.sequence, chunk.start, chunk.num_tokens - len(chunk.draft))
        try:
            part = self._runner.run(Plan([chunk]))
        except Exception as error:  # noqa: BLE001 - see run
            _note(chunk, error, failed)
        else:
            done.append(chunk)
            _append(merged, part)


def _plan(chunks: list[ScheduledChunk], preempted: list[Sequence]) -> Plan:
    return Plan(chunks, preempted, sum(len(chunk.draft) for chunk in chunks))


def _note(chunk: ScheduledChunk, error: Exception, failed: dict[Sequence, str]) -> None:
    logger.error("a request failed in its step: %s", type(error).__name__, exc_info=error)
    failed[chunk.sequence] = _FAILED


def _select(result: StepResult, keep: list[int]) -> StepResult:
    """The entries `keep` of a result, renumbered."""
    return StepResult(
        [result.token_ids[i] for i in keep],
        [True] * len(keep),
        {new: result.accepted[old] for new, old in enumerate(keep) if old in result.accepted},
        {new: result.logprobs[old] for new, old in enumerate(keep) if old in result.logprobs},
        {new: result.prompt_logprobs[old] for new, old in enumerate(keep) if old in result.prompt_logprobs},
    )


def _append(merged: StepResult, part: StepResult) -> None:
    """Add the entries of `part` behind those of `merged`."""
    offset = len(merged.token_ids)
    merged.accepted |= {offset + i: tokens for i, tokens in part.accepted.items()}
    merged.token_ids += part.token_ids
    merged.is_sound += part.is_sound
    merged.logprobs |= {offset + i: record for i, record in part.logprobs.items()}
    merged.prompt_logprobs |= {offset + i: records for i, records in part.prompt_logprobs.items()}

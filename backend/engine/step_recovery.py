"""Runs a plan so that an error ends only the request that causes it.

A failed batch is run again one request at a time and without drafts; so are requests whose drafts made their
logits non-finite. A step for which the device has no memory is computed in parts (`step_parts.py`).
"""

from __future__ import annotations

import logging
from collections import deque

from backend.engine.runner_protocol import Runner, StepResult
from backend.engine.step_parts import TokenLimit, joined, take_part
from backend.errors import AdapterError, DeviceLost, StepTooLarge
from backend.types import Plan, ScheduledChunk, Sequence

logger = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""Consecutive steps in which no request could be computed: the device or the model is broken."""

_NOT_FINITE = "the model gave no finite logits for this request; check the checkpoint or use dtype float32"
_FAILED = "the engine could not compute this request; its log names the cause"


class StepRecovery:
    """Drives a runner and counts consecutive failed steps."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._num_failed_steps = 0
        self._limit = TokenLimit()

    @property
    def is_limited(self) -> bool:
        """Whether memory was short: steps are computed in parts, and none is launched ahead."""
        return self._limit.max_tokens is not None

    def run(self, plan: Plan) -> tuple[Plan, StepResult, dict[Sequence, str]]:
        """The part of the plan that was computed, its result, and an error message for each failed request.

        Chunks of failed requests must not be committed: their pages may hold anything. Raises the runner's
        error when no request could be computed, if the plan has several chunks or if that was the third such
        step in a row.
        """
        self._limit.begin_step()
        if self._limit.max_tokens is not None and plan.num_tokens > self._limit.max_tokens:
            return self._run_parts(plan, None)
        try:
            result = self._runner.run(plan)
        except Exception as error:  # noqa: BLE001 - any failure of a model may be one request's fault
            return self.again(plan, error, len(plan.chunks))
        return self.sift(plan, result)

    def again(
        self, plan: Plan, error: Exception, num_tried: int
    ) -> tuple[Plan, StepResult, dict[Sequence, str]]:
        """What `run` returns, for a plan that this error has failed. Raises DeviceLost as it is.

        `num_tried`: chunks that were computed together; some may have ended since.
        """
        if isinstance(error, DeviceLost):
            raise error
        if not plan.chunks:
            return plan, StepResult([], []), {}
        if isinstance(error, StepTooLarge):
            self._limit.lower(plan.num_tokens)
            return self._run_parts(plan, error)
        failed: dict[Sequence, str] = {}
        if num_tried == 1 and not plan.num_drafts:
            _record_failure(plan.chunks[0], error, failed)
            return self._sift(*self._judge(plan, [], StepResult([], []), error), failed)
        return self._sift(*self._run_each_alone(plan, error, failed), failed)

    def sift(self, plan: Plan, result: StepResult) -> tuple[Plan, StepResult, dict[Sequence, str]]:
        """What `run` returns, for a plan that was computed."""
        self._num_failed_steps = 0
        return self._sift(plan, result, {})

    def _sift(
        self, plan: Plan, result: StepResult, failed: dict[Sequence, str]
    ) -> tuple[Plan, StepResult, dict[Sequence, str]]:
        if all(result.is_sound):
            return plan, result, failed
        if plan.num_drafts:
            plan, result = self._retry_without_drafts(plan, result, failed)
        sound = [chunk for chunk, ok in zip(plan.chunks, result.is_sound, strict=True) if ok]
        kept = {chunk.sequence for chunk in sound}
        drawn = [i for i, chunk in enumerate(plan.sampled) if chunk.sequence in kept]
        failed |= {chunk.sequence: _NOT_FINITE for chunk in plan.chunks if chunk.sequence not in kept}
        return _plan(sound, plan.preempted), result.select(drawn, [True] * len(sound)), failed

    def _run_each_alone(
        self, plan: Plan, error: Exception, failed: dict[Sequence, str]
    ) -> tuple[Plan, StepResult]:
        """Run each chunk by itself, without its draft, to find the request that causes `error`."""
        done: list[ScheduledChunk] = []
        merged = StepResult([], [])
        for chunk in plan.chunks:
            self._run_alone(chunk, done, merged, failed)
        return self._judge(plan, done, merged, error)

    def _judge(
        self, plan: Plan, done: list[ScheduledChunk], merged: StepResult, error: Exception
    ) -> tuple[Plan, StepResult]:
        """What was done of a plan. Raises the error where it is not one request's."""
        # A full device only fails requests with adapters: nothing else is broken.
        is_broken = not done and not isinstance(error, AdapterError)
        self._num_failed_steps = self._num_failed_steps + 1 if is_broken else 0
        if is_broken and (len(plan.chunks) > 1 or self._num_failed_steps == MAX_FAILED_STEPS):
            raise error
        return Plan(done, plan.preempted), merged

    def _run_parts(self, plan: Plan, error: Exception | None) -> tuple[Plan, StepResult, dict[Sequence, str]]:
        """What `run` returns, computed a part after the other, each within the limit."""
        waiting, pieces, merged = deque(plan.chunks), list[ScheduledChunk](), StepResult([], [])
        failed: dict[Sequence, str] = {}
        while part := take_part(waiting, self._limit.max_tokens or plan.num_tokens, failed):
            try:
                result = self._runner.run(_plan(part, []))
            except DeviceLost:
                raise
            except StepTooLarge as too_large:
                error, num_tokens = too_large, sum(chunk.num_tokens for chunk in part)
                if num_tokens == 1:
                    _record_failure(part[0], error, failed)
                    continue
                self._limit.lower(num_tokens)
                waiting.extendleft(reversed(part))
            except Exception as other:  # noqa: BLE001 - see run
                error = other
                for chunk in part:
                    self._run_alone(chunk, pieces, merged, failed)
            else:
                pieces += part
                _append(merged, result)
        done, merged.is_sound = joined(pieces, merged.is_sound, failed)
        if error is None:
            self._num_failed_steps = 0
            return self._sift(_plan(done, plan.preempted), merged, failed)
        judged = self._judge(plan, done, merged, error)[1]
        return self._sift(_plan(done, plan.preempted), judged, failed)

    def _retry_without_drafts(
        self, plan: Plan, result: StepResult, failed: dict[Sequence, str]
    ) -> tuple[Plan, StepResult]:
        """Compute unsound chunks with drafts again: the draft may be the cause."""
        done: list[ScheduledChunk] = []
        merged = StepResult([], [])
        index = 0
        for chunk, is_sound in zip(plan.chunks, result.is_sound, strict=True):
            keep = [index] if chunk.samples else []
            index += len(keep)
            if chunk.draft and not is_sound:
                self._runner.forget(chunk.sequence)  # its penalty counts include the discarded draw
                self._run_alone(chunk, done, merged, failed)
                continue
            done.append(chunk)
            _append(merged, result.select(keep, [is_sound]))
        return _plan(done, plan.preempted), merged

    def _run_alone(
        self,
        chunk: ScheduledChunk,
        done: list[ScheduledChunk],
        merged: StepResult,
        failed: dict[Sequence, str],
    ) -> None:
        """Run one chunk without its draft; add it to `done` and `merged`, or its error to `failed`."""
        chunk = ScheduledChunk(chunk.sequence, chunk.start, chunk.num_tokens - len(chunk.draft))
        try:
            result = self._runner.run(Plan([chunk]))
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - see run
            _record_failure(chunk, error, failed)
        else:
            done.append(chunk)
            _append(merged, result)


def _plan(chunks: list[ScheduledChunk], preempted: list[Sequence]) -> Plan:
    return Plan(chunks, preempted, sum(len(chunk.draft) for chunk in chunks))


def _record_failure(chunk: ScheduledChunk, error: Exception, failed: dict[Sequence, str]) -> None:
    logger.error("a request failed in its step: %s", type(error).__name__, exc_info=error)
    failed[chunk.sequence] = _FAILED


def _append(merged: StepResult, result: StepResult) -> None:
    """Append the entries of `result` to those of `merged`."""
    offset = len(merged.token_ids)
    merged.accepted |= {offset + i: tokens for i, tokens in result.accepted.items()}
    merged.token_ids += result.token_ids
    merged.is_sound += result.is_sound
    merged.logprobs |= {offset + i: record for i, record in result.logprobs.items()}
    merged.prompt_logprobs |= {offset + i: records for i, records in result.prompt_logprobs.items()}

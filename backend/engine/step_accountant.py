"""Times and counts of each step, and the histories of traced requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backend.engine.step_report import GrammarReport, StepReport
from backend.kv.manager import KVManager
from backend.types import FinishReason, Plan, RequestTrace, ScheduledChunk, Sequence, StepOutput


class StepAccountant:
    """Measures one step at a time: `begin_step`, `end_compute`, `count_outputs`, `report`."""

    def __init__(self, kv: KVManager, clock: Callable[[], float], work_clock: Callable[[], float]) -> None:
        """`clock` gives wall-clock seconds, `work_clock` the seconds that this thread or device worked."""
        self._kv = kv
        self._clock, self._work_clock = clock, work_clock
        self._last_token_s: dict[Sequence, float] = {}
        self._traces: dict[Sequence, RequestTrace] = {}
        self._ended_traces: list[RequestTrace] = []
        self._started_s = self._work_started_s = self._now_s = 0.0
        self._prefix_hits_before = 0
        self.duration_s = 0.0  # of the current step, up to the end of its computation
        self.work_s = 0.0  # the same by `work_clock`
        self.num_prompt_tokens = 0  # computed in the current step
        self._num_generated_tokens = 0
        self._ttfts_s: list[float] = []
        self._inter_token_s: list[float] = []
        self._drafts: list[tuple[int, int]] = []

    def begin_step(self, *, is_in_flight: bool = False) -> None:
        """Start the clocks. They run already if the step that is read next was in flight before.

        It was launched when the one before it was read: a step takes from one reading to the next.
        """
        if not is_in_flight:
            self._started_s, self._work_started_s = self._clock(), self._work_clock()
        self._num_generated_tokens = 0
        self._ttfts_s, self._inter_token_s, self._drafts = [], [], []

    def end_compute(self, plan: Plan) -> None:
        """The plan was computed: stop the clocks, count its prompt tokens, add its chunks to traces."""
        self._now_s, work_now_s = self._clock(), self._work_clock()
        self.duration_s = self._now_s - self._started_s
        self.work_s = work_now_s - self._work_started_s
        self._started_s, self._work_started_s = self._now_s, work_now_s
        self.num_prompt_tokens = _num_prompt_tokens(plan)
        if self._traces:
            for chunk in plan.chunks:
                self._trace_chunk(chunk)

    def count_outputs(
        self,
        chunks: list[ScheduledChunk],
        outputs: list[StepOutput],
        drafter_of: Callable[[Sequence], str] = lambda sequence: "",
    ) -> None:
        """Each chunk gave an output: one token and the accepted drafts, which share the time since the last.

        `drafter_of`: whose draft was verified.
        """
        now_s, last_token_s = self._now_s, self._last_token_s
        self._num_generated_tokens += len(chunks)
        for chunk, output in zip(chunks, outputs, strict=True):
            sequence = chunk.sequence
            last_s, num_tokens = last_token_s.get(sequence), 1
            last_token_s[sequence] = now_s
            if chunk.draft:
                self._count_draft(chunk, output.num_accepted, drafter_of(sequence))
                num_tokens += output.num_accepted
            if last_s is None:
                self._ttfts_s.append(now_s - sequence.arrival_s)
            elif num_tokens == 1:
                self._inter_token_s.append(now_s - last_s)
            else:
                self._inter_token_s += [(now_s - last_s) / num_tokens] * num_tokens

    def _count_draft(self, chunk: ScheduledChunk, num_accepted: int, drafter: str) -> None:
        self._num_generated_tokens += num_accepted
        self._drafts.append((chunk.draft_depth, num_accepted))
        if (trace := self._traces.get(chunk.sequence)) is not None:
            trace.num_accepted_tokens += num_accepted
            counts = trace.drafters.setdefault(drafter, [0, 0, 0])
            for i, count in enumerate((1, len(chunk.draft), num_accepted)):
                counts[i] += count

    def report(self, plan: Plan, computed: Plan, grammars: GrammarReport | None) -> StepReport:
        """The step's figures. Of the plan, `computed` is what did not fail."""
        hits_before, self._prefix_hits_before = self._prefix_hits_before, self._kv.prefix_hit_tokens_total
        return StepReport(
            duration_s=self.duration_s,
            num_tokens=computed.num_tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
            num_prefix_hit_tokens=self._prefix_hits_before - hits_before,
            num_preempted=len(plan.preempted),
            ttfts_s=self._ttfts_s,
            inter_token_s=np.array(self._inter_token_s, dtype=np.float64),
            drafts=self._drafts,
            grammars=grammars,
            work_s=self.work_s,
        )

    def add_request(self, sequence: Sequence) -> None:
        """Trace a new request if its client asks for it."""
        request = sequence.request
        if request.traceparent or request.wants_trace:
            self._traces[sequence] = RequestTrace(
                request.traceparent, request.request_id, sequence.num_prompt_tokens, sequence.arrival_s
            )

    def end_request(self, sequence: Sequence, reason: FinishReason) -> None:
        """Complete the request's trace, for `take_traces`."""
        self._last_token_s.pop(sequence, None)
        trace = self._traces.pop(sequence, None)
        if trace is None:
            return
        trace.scheduled_s = sequence.scheduled_s
        trace.first_token_s = sequence.first_token_s
        trace.finished_s = self._clock()
        trace.finish_reason = reason
        trace.num_cached_tokens = sequence.num_cached_tokens
        trace.num_preemptions = sequence.num_preemptions
        trace.num_output_tokens = sequence.num_output_tokens
        self._ended_traces.append(trace)

    def take_traces(self) -> list[RequestTrace]:
        """Traces of requests that ended since the last call."""
        traces, self._ended_traces = self._ended_traces, []
        return traces

    def _trace_chunk(self, chunk: ScheduledChunk) -> None:
        trace = self._traces.get(chunk.sequence)
        if trace is None:
            return
        if chunk.num_tokens - len(chunk.draft) == 1 and chunk.sequence.num_output_tokens:
            trace.num_decode_steps += 1
            trace.num_drafts += bool(chunk.draft)
            trace.num_drafted_tokens += len(chunk.draft)
        else:
            trace.chunks.append((self._now_s, chunk.start, chunk.num_tokens))


def _num_prompt_tokens(plan: Plan) -> int:
    total = 0
    for chunk in plan.chunks:
        num_left = chunk.sequence.num_prompt_tokens - chunk.start
        if num_left > 0:
            total += min(chunk.num_tokens, num_left)
    return total

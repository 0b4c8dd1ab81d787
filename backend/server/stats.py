"""Counters and histograms of one engine process, and the snapshot that heartbeats carry."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backend.server.engine_messages import (
    COMPILE_BOUNDS_S,
    INTER_TOKEN_BOUNDS_S,
    MASK_BOUNDS_S,
    STEP_TIME_BOUNDS_S,
    STEP_TOKENS_BOUNDS,
    TTFT_BOUNDS_S,
    EngineStats,
)

if TYPE_CHECKING:
    from backend.engine.engine import Engine
    from backend.engine.step_report import StepReport


DRAFT_POSITIONS = 16
"""Draft positions that are counted separately; the last one counts all later ones, too."""


class Histogram:
    """Counts per bucket; upper bounds are inclusive, as in Prometheus."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def observe_many(self, values: NDArray[np.float64]) -> None:
        """Count an array of values."""
        if len(values):
            buckets = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
            self._counts = [old + new for old, new in zip(self._counts, buckets.tolist(), strict=True)]
            self.total += float(values.sum())

    def cumulative(self) -> list[int]:
        """Counts of values at or below each bound, then of all values."""
        return np.cumsum(self._counts).tolist()  # type: ignore[no-any-return]


class StatsCollector:
    """Accumulates step reports."""

    def __init__(self) -> None:
        self._step_time = Histogram(STEP_TIME_BOUNDS_S)
        self._step_tokens = Histogram(STEP_TOKENS_BOUNDS)
        self._ttft = Histogram(TTFT_BOUNDS_S)
        self._inter_token = Histogram(INTER_TOKEN_BOUNDS_S)
        self._steps = 0
        self._work_s = 0.0
        self._prompt_tokens = 0
        self._prefix_hit_tokens = 0
        self._generated_tokens = 0
        self._preemptions = 0
        self._drafts = 0
        self._drafted = [0] * DRAFT_POSITIONS
        self._accepted = [0] * DRAFT_POSITIONS
        self._grammar_compile = Histogram(COMPILE_BOUNDS_S)
        self._grammar_mask = Histogram(MASK_BOUNDS_S)
        self._forced_tokens = 0
        self._requests: dict[str, int] = {}

    @property
    def steps_total(self) -> int:
        """Steps that computed something."""
        return self._steps

    def observe(self, report: StepReport) -> None:
        """Add one step."""
        self._steps += 1
        self._work_s += report.work_s
        self._prompt_tokens += report.num_prompt_tokens
        self._prefix_hit_tokens += report.num_prefix_hit_tokens
        self._generated_tokens += report.num_generated_tokens
        self._preemptions += report.num_preempted
        self._step_time.observe(report.duration_s)
        self._step_tokens.observe(report.num_tokens)
        for ttft_s in report.ttfts_s:
            self._ttft.observe(ttft_s)
        self._inter_token.observe_many(report.inter_token_s)
        for num_drafted, num_accepted in report.drafts:
            self._drafts += 1
            _count_positions(self._drafted, num_drafted)
            _count_positions(self._accepted, num_accepted)
        if report.grammars is not None:
            self._forced_tokens += report.grammars.num_forced_tokens
            for compile_s in report.grammars.compile_s:
                self._grammar_compile.observe(compile_s)
            if report.grammars.mask_s:
                self._grammar_mask.observe(report.grammars.mask_s)

    def count_finished(self, reason: str) -> None:
        """One request ended, for `reason`."""
        self._requests[reason] = self._requests.get(reason, 0) + 1

    def snapshot(self, engine: Engine) -> EngineStats:
        """Everything as a message."""
        adapters = engine.adapters
        return EngineStats(
            num_waiting=engine.scheduler.num_waiting,
            num_running=engine.scheduler.num_running,
            max_running=engine.max_running,
            waiting_tokens=engine.scheduler.waiting_tokens,
            admission_interval_s=engine.scheduler.admission_interval_s,
            prefill_s_per_token=engine.scheduler.budget.prefill_s_per_token,
            decode_step_s=engine.scheduler.budget.decode_s(engine.scheduler.num_running),
            free_pages=engine.kv.free_pages,
            total_pages=engine.kv.num_pages,
            cached_pages=engine.kv.cached_pages,
            state_checkpoints=engine.kv.num_checkpoints,
            steps_total=self._steps,
            work_s_total=self._work_s,
            machine_work_s_total=engine.machine.work_s,
            machine_idle_s_total=engine.machine.idle_s,
            prompt_tokens_total=self._prompt_tokens,
            prefix_hit_tokens_total=self._prefix_hit_tokens,
            generated_tokens_total=self._generated_tokens,
            preemptions_total=self._preemptions,
            drafts_total=self._drafts,
            drafted_tokens_total=list(self._drafted) if self._drafts else [],
            accepted_tokens_total=list(self._accepted) if self._drafts else [],
            drafter_tokens_total={
                name: list(tokens) for name, tokens in engine.speculator.tokens_by_drafter.items()
            },
            forced_tokens_total=self._forced_tokens,
            requests_total=dict(self._requests),
            adapters_on_device=0 if adapters is None else len(adapters.slots.resident),
            adapter_loads_total=0 if adapters is None else adapters.slots.loads_total,
            adapter_requests_total={} if adapters is None else adapters.requests(),
            step_time_s=self._step_time.cumulative(),
            step_time_sum_s=self._step_time.total,
            step_tokens=self._step_tokens.cumulative(),
            step_tokens_sum=self._step_tokens.total,
            ttft_s=self._ttft.cumulative(),
            ttft_sum_s=self._ttft.total,
            inter_token_s=self._inter_token.cumulative(),
            inter_token_sum_s=self._inter_token.total,
            grammar_compile_s=self._grammar_compile.cumulative(),
            grammar_compile_sum_s=self._grammar_compile.total,
            grammar_mask_s=self._grammar_mask.cumulative(),
            grammar_mask_sum_s=self._grammar_mask.total,
        )


def _count_positions(counts: list[int], num_tokens: int) -> None:
    """Add one at each of the first `num_tokens` positions."""
    for position in range(min(num_tokens, DRAFT_POSITIONS)):
        counts[position] += 1
    counts[-1] += max(0, num_tokens - DRAFT_POSITIONS)

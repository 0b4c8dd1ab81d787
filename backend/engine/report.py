"""What the engine says about its work: one StepReport per step, one RequestTrace per ended traced request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from backend.types import FinishReason


@dataclass(frozen=True, slots=True)
class GrammarReport:
    """What grammars took and gave in one step."""

    mask_s: float  # 0.0: no row had a grammar
    compile_s: list[float]  # of grammars that were compiled since the last report, or refused
    num_forced_tokens: int  # of the outputs, those that a grammar left no choice about


@dataclass(frozen=True, slots=True)
class StepReport:
    """Figures of one step, for counters and histograms."""

    duration_s: float
    num_tokens: int
    num_prompt_tokens: int  # computed, without prefix hits; again after a preemption
    num_generated_tokens: int
    num_prefix_hit_tokens: int
    num_preempted: int
    ttfts_s: list[float]  # of sequences whose first token this was
    inter_token_s: NDArray[np.float64]  # of all others, one per token; those of one step share its time
    drafts: list[tuple[int, int]] = field(default_factory=list)  # each one's depth, and accepted tokens
    grammars: GrammarReport | None = None  # None: no part of the step


@dataclass(slots=True)
class RequestTrace:
    """When things happened to one traced request; times are time.monotonic(), -1: never."""

    traceparent: str
    request_id: str
    num_prompt_tokens: int
    arrival_s: float
    scheduled_s: float = -1.0
    first_token_s: float = -1.0
    finished_s: float = -1.0
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_output_tokens: int = 0
    num_decode_steps: int = 0
    num_drafts: int = 0  # decode steps that verified one
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    chunks: list[tuple[float, int, int]] = field(default_factory=list)  # (time of its end, start, tokens)

"""The records of the engine's work: a StepReport per step, a RequestTrace per finished traced request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from backend.types import FinishReason


@dataclass(frozen=True, slots=True)
class GrammarReport:
    """Grammar work of one step."""

    mask_s: float  # 0.0: no row had a grammar
    compile_s: list[float]  # one per grammar compiled or rejected since the last report
    num_forced_tokens: int  # output tokens for which the grammar allowed one choice only


@dataclass(frozen=True, slots=True)
class StepReport:
    """Figures of one step, for counters and histograms."""

    duration_s: float
    num_tokens: int
    num_prompt_tokens: int  # computed, so without prefix hits; again after a preemption
    num_generated_tokens: int
    num_prefix_hit_tokens: int
    num_preempted: int
    ttfts_s: list[float]  # time to first token, of sequences that got their first token
    inter_token_s: NDArray[np.float64]  # of the others, one per token; tokens of one step share its time
    drafts: list[tuple[int, int]] = field(default_factory=list)  # (depth, accepted tokens) of each draft
    grammars: GrammarReport | None = None  # None: no grammar was used
    work_s: float = 0.0  # that this thread or device worked; a busy machine does not lengthen it


@dataclass(slots=True)
class RequestTrace:
    """The history of one traced request; times are time.monotonic(), -1: never."""

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
    num_drafts: int = 0  # decode steps that verified a draft
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    chunks: list[tuple[float, int, int]] = field(default_factory=list)  # (end time, start, tokens)

"""The record of the engine's work in one step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


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

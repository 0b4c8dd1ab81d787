"""The seam between the engine and what computes: a Runner turns a Plan into tokens. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from backend.types import Plan, Sequence, TokenLogprobs


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """What the engine must know of the thing that it drives."""

    vocab_size: int
    num_pages: int
    max_model_tokens: int
    eos_token_ids: frozenset[int]
    revision: str  # content hash of the weights; part of every page's identity
    kv_dtype: str


@dataclass(slots=True)
class StepResult:
    """What one step gave, in plan order: tokens of the R chunks that sample, soundness of all B."""

    token_ids: list[int]
    is_sound: list[bool]  # False: what the chunk computed is not finite; token and KV mean nothing
    accepted: dict[int, list[int]] = field(default_factory=dict)  # drafts that come before token_ids[i], by i
    # By index into token_ids: a record for each accepted draft, then the token's own.
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs | None]] = field(default_factory=dict)
    mask_s: float = 0.0  # spent on grammars


class Runner(Protocol):
    """Drives a model. State that it keeps per sequence lasts until `forget`."""

    @property
    def facts(self) -> RunnerFacts:
        """Constant while the process lives."""
        ...

    def run(self, plan: Plan) -> StepResult:
        """Compute a plan's chunks. When it raises, nothing but KV memory of those chunks has changed."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has lost its row: finished, aborted or preempted."""
        ...

"""Settings of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from backend.errors import ConfigError
from backend.types import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of the queue, the batch and the step time."""

    max_model_tokens: int  # context length: prompt + output of one sequence
    max_batch_tokens: int = 2048  # tokens computed in one step
    max_running: int = 128  # sequences with a row and pages
    max_queue: int = 512  # waiting sequences at which new ones are refused; preempted ones always fit
    max_step_stretch: float = 2.3  # target: time of a step with prefill / time of a decode-only step
    max_step_s: float = 1.0  # prompt tokens per step are limited to what this time is expected to allow
    max_shared_step_s: float = 0.2  # likewise while tenants share steps, and for more than a few tokens
    max_background_step_s: float = 0.005  # likewise in steps with prompts of background sequences only
    max_background_share: float = 0.1  # of online steps' time, for background sequences in addition
    max_draft_tokens: int | None = None  # of one sequence in a step, and trees become chains; None: no limit
    min_chunk_tokens: int = PAGE_TOKENS  # smallest prefill chunk, except at the end of a prompt

    def __post_init__(self) -> None:
        for name in ("max_model_tokens", "max_running", "max_queue", "min_chunk_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be at least 1")
        if self.max_batch_tokens < max(self.max_running, self.min_chunk_tokens):
            raise ConfigError(
                f"max_batch_tokens is {self.max_batch_tokens!r}, less than max_running "
                f"{self.max_running!r} or min_chunk_tokens {self.min_chunk_tokens!r}; raise it, since every "
                "running sequence needs a token per step"
            )
        for name in ("max_step_s", "max_shared_step_s", "max_background_step_s"):
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be greater than 0")
        if self.max_step_stretch <= 1.0:
            raise ConfigError(f"max_step_stretch is {self.max_step_stretch!r}; it must be greater than 1")

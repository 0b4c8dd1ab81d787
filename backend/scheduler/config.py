"""The scheduler's own settings record."""

from __future__ import annotations

from dataclasses import dataclass

from backend.types import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Bounds of the queue, the batch and the step."""

    max_model_tokens: int  # prompt + output of one sequence
    max_batch_tokens: int = 2048  # tokens computed in one step
    max_running: int = 128  # sequences with a row and pages
    max_queue: int = 512  # sequences waiting for their first step; preempted ones come on top
    max_step_stretch: float = 2.3  # a step with prefill lasts at most so many times a step without
    max_step_s: float = 1.0  # a step takes no more prompt tokens than are expected to be computed in it
    min_chunk_tokens: int = PAGE_TOKENS  # a prompt is not cut into smaller pieces

    def __post_init__(self) -> None:
        for name in ("max_model_tokens", "max_running", "max_queue", "min_chunk_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be at least 1")
        if self.max_batch_tokens < max(self.max_running, self.min_chunk_tokens):
            raise ValueError(
                f"max_batch_tokens is {self.max_batch_tokens!r}, less than max_running "
                f"{self.max_running!r} or min_chunk_tokens {self.min_chunk_tokens!r}; raise it, since every "
                "running sequence needs a token per step"
            )
        if self.max_step_s <= 0.0:
            raise ValueError(f"max_step_s is {self.max_step_s!r}; it must be greater than 0")
        if self.max_step_stretch <= 1.0:
            raise ValueError(f"max_step_stretch is {self.max_step_stretch!r}; it must be greater than 1")

"""What background sequences may take of the steps: all that online ones leave, and a small share more."""

from __future__ import annotations


class BackgroundBudget:
    """Call `observe` after every step with background sequences, or with online ones that they wait for."""

    def __init__(
        self, max_batch_tokens: int, min_chunk_tokens: int, max_step_s: float, max_share: float
    ) -> None:
        """`max_share`: of the time of online steps that background sequences may add to them."""
        self.prompt_tokens = min_chunk_tokens
        """Prompt tokens of a step: as many as fit `max_step_s`, found by trying.

        An online prompt that arrives meanwhile waits for such a step. Its rate says nothing about the cost of
        longer ones, and stays out of PrefillBudget.
        """
        self._bounds = min_chunk_tokens, max_batch_tokens
        self._max_step_s = max_step_s
        self._max_share = max_share
        self._credit_s = 0.0

    @property
    def may_join(self) -> bool:
        """Whether background sequences may be in the next step beside online ones."""
        return self._credit_s >= 0.0

    def observe_online(self, step_time_s: float) -> None:
        """A step of online sequences alone, which earns the background a share of its time."""
        self._credit_s = min(self._credit_s + self._max_share * step_time_s, self._max_step_s)

    def observe_joint(self, added_s: float) -> None:
        """A step of both, which took `added_s` longer than online sequences alone would have."""
        self._credit_s -= max(0.0, added_s)

    def observe_prompts(self, num_prompt_tokens: int, step_time_s: float) -> None:
        """A step with background prompts; one with fewer tokens than allowed can only lower the limit."""
        if step_time_s <= 0.0:
            return
        fitting = int(num_prompt_tokens * min(2.0, max(0.5, self._max_step_s / step_time_s)))
        if num_prompt_tokens >= self.prompt_tokens or fitting < num_prompt_tokens:
            self.prompt_tokens = min(max(fitting, self._bounds[0]), self._bounds[1])

"""One sequence's grammar: which tokens may come next, and the way forward and back."""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

Mask = NDArray[np.int32]
"""One bit per token, least significant first; a row has ceil(vocabulary / 32) words."""


class Grammar:
    """Follows the output of one sequence. After an `error` all tokens are allowed: the request must end."""

    __slots__ = ("_matcher", "error")

    def __init__(self, start: LLMatcher) -> None:
        """`start` stays as it is."""
        self._matcher = start.deep_copy()
        self.error = ""  # a sentence for the user, once a limit of the automata was exceeded

    @property
    def is_over(self) -> bool:
        """The output is complete and nothing may follow."""
        return not self.error and self._matcher.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """The output is complete, though more may follow."""
        return not self.error and self._matcher.is_accepting()

    def fill_mask(self, row: Mask) -> None:
        """Set the bits of the tokens that may come next, the ends among them once the output is complete."""
        if not self.error:
            self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            self._check()
        if self.error:
            row.fill(-1)

    def fill_masks(self, rows: Mask, drafts: list[int]) -> None:
        """As `fill_mask` for [k + 1, W] rows: before each of k drafts, given those in front, and after all.

        Rows behind a draft that is not allowed stay as they are: nothing there will be accepted.
        """
        num_ahead = 0
        self.fill_mask(rows[0])
        for i, token_id in enumerate(drafts):
            if self.error or not self._matcher.try_consume_tokens([token_id]):
                break
            num_ahead += 1
            self.fill_mask(rows[i + 1])
        if num_ahead and not self.error:
            self.rollback(num_ahead)

    def advance(self, token_id: int) -> None:
        """A token was kept."""
        if not self.error:
            self._matcher.consume_token(token_id)
            self._check()

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        if not self.error and num_tokens:
            self._matcher.rollback(num_tokens)
            self._check()

    def filter_drafts(self, token_ids: list[int]) -> int:
        """How many of these tokens, from the first on, may follow."""
        if self.error or self._matcher.is_stopped():
            return 0
        return self._matcher.validate_tokens(token_ids)

    def forced_tokens(self) -> list[int]:
        """Tokens that spell what must come next; empty when there is a choice."""
        if self.error or self._matcher.is_stopped():
            return []
        return self._matcher.compute_ff_tokens()

    def _check(self) -> None:
        if self._matcher.is_error():
            self.error = f"the grammar of this request became too complex: {reason(self._matcher)}"


def reason(matcher: LLMatcher) -> str:
    """What the library says about an error, on one line of bounded length."""
    lines = [line for line in matcher.get_error().splitlines() if line and not line.startswith("<")]
    return " ".join(lines)[:300]

"""One sequence's grammar: which tokens may come next, and the way forward and back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from backend.types import Draft, DraftTree

Mask = NDArray[np.int32]
"""One bit per token, least significant first; a row has ceil(vocabulary / 32) words."""


class Grammar:
    """Follows the output of one sequence. After an `error` all tokens are allowed: the request must end."""

    __slots__ = ("error", "matcher")

    def __init__(self, start: LLMatcher) -> None:
        """`start` stays as it is."""
        self.matcher = start.deep_copy()
        self.error = ""  # a sentence for the user, once a limit of the automata was exceeded

    @property
    def is_over(self) -> bool:
        """The output is complete and nothing may follow."""
        return not self.error and self.matcher.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """The output is complete, though more may follow."""
        return not self.error and self.matcher.is_accepting()

    def fill_mask(self, row: Mask) -> None:
        """Set the bits of the tokens that may come next, the ends among them once the output is complete."""
        if not self.error:
            self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            self.check()
        if self.error:
            row.fill(-1)

    def fill_masks(self, rows: Mask, drafts: Draft) -> None:
        """As `fill_mask` for [k + 1, W] rows: before each of k drafts, given those in front, and after all.

        Of a tree, row i + 1 is that behind node i. Rows behind a draft that is not allowed stay as they are:
        nothing there will be accepted.
        """
        if isinstance(drafts, DraftTree):
            self.fill_mask(rows[0])
            for node in self._walk(drafts):
                self.fill_mask(rows[node + 1])
            return
        num_ahead = 0
        self.fill_mask(rows[0])
        for i, token_id in enumerate(drafts):
            if self.error or not self.matcher.try_consume_tokens([token_id]):
                break
            num_ahead += 1
            self.fill_mask(rows[i + 1])
        if num_ahead and not self.error:
            self.rollback(num_ahead)

    def advance(self, token_id: int) -> None:
        """A token was kept."""
        if not self.error:
            self.matcher.consume_token(token_id)
            self.check()

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        if not self.error and num_tokens:
            self.matcher.rollback(num_tokens)
            self.check()

    def filter_drafts(self, token_ids: list[int]) -> int:
        """How many of these tokens, from the first on, may follow."""
        if self.error or self.matcher.is_stopped():
            return 0
        return self.matcher.validate_tokens(token_ids)

    def allowed_nodes(self, tree: DraftTree) -> list[int]:
        """The nodes whose path may follow, in ascending order."""
        return [] if self.error or self.matcher.is_stopped() else sorted(self._walk(tree))

    def forced_tokens(self) -> list[int]:
        """Tokens that spell what must come next; empty when there is a choice."""
        if self.error or self.matcher.is_stopped():
            return []
        return self.matcher.compute_ff_tokens()

    def _walk(self, tree: DraftTree) -> Iterator[int]:
        """Stand behind each node whose path may follow, one after the other; ends in the state of before."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents):
            children.setdefault(parent, []).append(node)
        path: list[list[int]] = [
            children.get(-1, [])[::-1]
        ]  # for each node on the way, children still to visit
        while path:
            if not path[-1] or self.error:
                path.pop()
                if path:
                    self.rollback(1)
                continue
            node = path[-1].pop()
            if self.matcher.try_consume_tokens([tree.tokens[node]]):
                path.append(children.get(node, [])[::-1])
                yield node

    def check(self) -> None:
        """Set `error` when the automaton has met a limit."""
        if self.matcher.is_error():
            self.error = f"the grammar of this request became too complex: {reason(self.matcher)}"


def reason(matcher: LLMatcher) -> str:
    """What the library says about an error, on one line of bounded length."""
    lines = [line for line in matcher.get_error().splitlines() if line and not line.startswith("<")]
    return " ".join(lines)[:300]

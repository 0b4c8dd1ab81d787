"""One sequence's grammar: which tokens may come next, and the way forward and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from backend.structured.allowance import PER_TOKEN_S, Allowance
from backend.structured.automata import Automaton
from backend.structured.reason import sentence
from backend.types import Draft, DraftTree

Mask = NDArray[np.int32]
"""One bit per token, least significant first; a row has ceil(vocabulary / 32) words."""


_NUM_REPLAYED = 16
"""Kept tokens that a new automaton takes between two looks at the clock."""

_TOO_SLOW = (
    "the grammar of this request takes too long to follow; simplify it: each text should be read in one way "
    "only, and long expressions should not overlap"
)


class Grammar:
    """Follows the output of one sequence. After an `error` all tokens are allowed: the request must end.

    An automaton grows by all that anybody asks it, so before a limit counts as an error it is tried whether
    the kept tokens take a new one there as well. Time is counted apart for drafts: a grammar that is slow to
    judge them gets none for a while, and only the way without them can take too long.
    """

    __slots__ = ("_automaton", "_for_drafts", "_for_tokens", "_kept", "_start", "error", "is_slow", "matcher")

    def __init__(self, automaton: Automaton) -> None:
        """Begins at its start."""
        self._automaton = automaton
        self._start = automaton.matcher
        self._kept: list[int] = []
        self.matcher = self._start.deep_copy()
        self._for_tokens, self._for_drafts = Allowance(), Allowance()
        self.error = ""  # a sentence for the user, once a limit of the automata or of time was exceeded
        self.is_slow = False  # its masks must be filled where their time is counted

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
        before_s = self._for_tokens.left_s
        self._fill(row, ())
        self.is_slow = before_s - self._for_tokens.left_s > PER_TOKEN_S

    def fill_masks(self, rows: Mask, drafts: Draft) -> None:
        """As `fill_mask` for [k + 1, W] rows: before each of k drafts, given those in front, and after all.

        Of a tree, row i + 1 is that behind node i. Rows behind a draft that is not allowed stay as they are:
        nothing there will be accepted.
        """
        if isinstance(drafts, DraftTree):
            self.fill_mask(rows[0])
            for node in self._walk(drafts):
                self._fill(rows[node + 1], _path(drafts, node))
            return
        num_ahead = 0
        self.fill_mask(rows[0])
        for i, token_id in enumerate(drafts):
            if self.error or not self._try(token_id, drafts[:num_ahead]):
                break
            num_ahead += 1
            self._fill(rows[i + 1], drafts[:num_ahead])
        self._step_back(num_ahead)

    def advance(self, token_id: int) -> None:
        """A token was kept."""
        if not self.error:
            self._kept.append(token_id)
            with self._for_tokens:
                self.matcher.consume_token(token_id)
            self._for_tokens.earn()
            self._for_drafts.earn()
            self._mend(())
            self._check()

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        if not self.error and num_tokens:
            del self._kept[-num_tokens:]
            self._step_back(num_tokens)

    def filter_drafts(self, token_ids: list[int]) -> int:
        """How many of these tokens, from the first on, may follow."""
        if not self._may_judge_drafts:
            return 0
        with self._for_drafts:
            return self.matcher.validate_tokens(token_ids)

    def allowed_nodes(self, tree: DraftTree) -> list[int]:
        """The nodes whose path may follow, in ascending order."""
        return sorted(self._walk(tree)) if self._may_judge_drafts else []

    def forced_tokens(self) -> list[int]:
        """Tokens that spell what must come next; empty when there is a choice."""
        if not self._may_judge_drafts:
            return []
        with self._for_drafts:
            return self.matcher.compute_ff_tokens()

    @property
    def _may_judge_drafts(self) -> bool:
        return not self.error and not self._for_drafts.is_spent and not self.matcher.is_stopped()

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
                    self._step_back(1)
                continue
            node = path[-1].pop()
            if self._try(tree.tokens[node], _path(tree, tree.parents[node])):
                path.append(children.get(node, [])[::-1])
                yield node

    def _fill(self, row: Mask, ahead: Sequence[int]) -> None:
        """As `fill_mask`, where the automaton stands behind the kept tokens and these."""
        if not self.error:
            self._compute(row, ahead)
            if self.matcher.is_error() and self._mend(ahead):
                self._compute(row, ahead)
            self._check()
        if self.error:
            row.fill(-1)

    def _compute(self, row: Mask, ahead: Sequence[int]) -> None:
        with self._for_drafts if ahead else self._for_tokens:
            self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def _try(self, token_id: int, ahead: Sequence[int]) -> bool:
        """Go on by this token from behind the kept ones and `ahead`, if it may come there."""
        with self._for_drafts:
            has_gone_on = bool(self.matcher.try_consume_tokens([token_id]))
        if self.matcher.is_error() and self._mend(ahead):
            has_gone_on = bool(self.matcher.try_consume_tokens([token_id]))
            self._check()
        return has_gone_on

    def _step_back(self, num_tokens: int) -> None:
        """Stand so many tokens further in front, which is behind the kept ones or a part of a draft."""
        if num_tokens and not self.error:
            self.matcher.rollback(num_tokens)
            self._check()

    def _mend(self, ahead: Sequence[int]) -> bool:
        """Build an automaton anew that has met a limit; False when it meets one without drafts as well."""
        if self.matcher.is_error():
            start = self._automaton.successor_of(self._start)
            if start is not None:
                self._start, self.matcher = start, start.deep_copy()
                self._replay([*self._kept, *ahead])
            self._check()
        return not self.error

    def _replay(self, tokens: list[int]) -> None:
        """Take these tokens anew, if that does not take too long."""
        allowance = Allowance()
        for i in range(0, len(tokens), _NUM_REPLAYED):
            with allowance:
                self.matcher.consume_tokens(tokens[i : i + _NUM_REPLAYED])
            if allowance.is_spent:
                self.error = _TOO_SLOW
                return

    def _check(self) -> None:
        """Set `error` when the automaton has met a limit, or has taken too long."""
        if self.matcher.is_error():
            self.error = sentence(self.matcher)
        elif self._for_tokens.is_spent:
            self.error = _TOO_SLOW


def _path(tree: DraftTree, node: int) -> list[int]:
    """The tokens on the way to a node, its own the last; -1: none."""
    found: list[int] = []
    while node >= 0:
        found.append(tree.tokens[node])
        node = tree.parents[node]
    return found[::-1]

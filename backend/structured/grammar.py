"""One sequence's grammar: which tokens may come next, and the way forward and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from backend.structured.automata import Automaton
from backend.structured.reason import reason
from backend.types import Draft, DraftTree

Mask = NDArray[np.int32]
"""One bit per token, least significant first; a row has ceil(vocabulary / 32) words."""


class Grammar:
    """Follows the output of one sequence. After an `error` all tokens are allowed: the request must end.

    An automaton grows by all that anybody asks it, so before a limit counts as an error it is tried whether
    the kept tokens take a new one there as well.
    """

    __slots__ = ("_automaton", "_kept", "_start", "error", "matcher")

    def __init__(self, automaton: Automaton) -> None:
        """Begins at its start."""
        self._automaton = automaton
        self._start = automaton.matcher
        self._kept: list[int] = []
        self.matcher = self._start.deep_copy()
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
        self._fill(row, ())

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
            self.matcher.consume_token(token_id)
            self._mend(())

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        if not self.error and num_tokens:
            del self._kept[-num_tokens:]
            self._step_back(num_tokens)

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
                    self._step_back(1)
                continue
            node = path[-1].pop()
            if self._try(tree.tokens[node], _path(tree, tree.parents[node])):
                path.append(children.get(node, [])[::-1])
                yield node

    def _fill(self, row: Mask, ahead: Sequence[int]) -> None:
        """As `fill_mask`, where the automaton stands behind the kept tokens and these."""
        if not self.error:
            self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if self.matcher.is_error() and self._mend(ahead):
                self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
                self._check()
        if self.error:
            row.fill(-1)

    def _try(self, token_id: int, ahead: Sequence[int]) -> bool:
        """Go on by this token from behind the kept ones and `ahead`, if it may come there."""
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
                if tokens := [*self._kept, *ahead]:
                    self.matcher.consume_tokens(tokens)
            self._check()
        return not self.error

    def _check(self) -> None:
        """Set `error` when the automaton has met a limit."""
        if self.matcher.is_error():
            self.error = f"the grammar of this request became too complex: {reason(self.matcher)}"


def _path(tree: DraftTree, node: int) -> list[int]:
    """The tokens on the way to a node, its own the last; -1: none."""
    found: list[int] = []
    while node >= 0:
        found.append(tree.tokens[node])
        node = tree.parents[node]
    return found[::-1]

"""The grammar state of one sequence: token masks, advance and rollback, and checks of draft tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from backend.structured.compiled_grammar import CompiledGrammar
from backend.structured.cpu_budget import PER_TOKEN_S, CpuBudget
from backend.structured.grammar_errors import generation_error
from backend.types import Draft, DraftTree

Mask = NDArray[np.int32]
"""One bit per token, least significant first; a row has ceil(vocabulary / 32) words."""


_REPLAY_CHUNK_TOKENS = 16
"""Accepted tokens that a rebuilt matcher consumes between two checks of the CPU budget."""

_TOO_SLOW = (
    "the grammar of this request takes too long to follow; simplify it: each text should be read in one way "
    "only, and long expressions should not overlap"
)


class Grammar:
    """A TokenGrammar over an llguidance matcher. After an `error` it allows all tokens: the request must end.

    The matcher's automaton grows with every token that any sequence tries. So before a limit counts as an
    error, the accepted tokens are replayed on a rebuilt matcher. Drafts have a CPU budget of their own: when
    they exhaust it they are refused for a while, and only the path without drafts can fail the request.
    """

    __slots__ = (
        "_accepted",
        "_compiled",
        "_draft_budget",
        "_initial",
        "_token_budget",
        "error",
        "is_slow",
        "matcher",
    )

    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self._initial = compiled.matcher
        self._accepted: list[int] = []
        self.matcher = self._initial.deep_copy()
        self._token_budget, self._draft_budget = CpuBudget(compiled), CpuBudget(compiled)
        self.error = ""  # message for the user, once a limit of states or CPU time was exceeded
        self.is_slow = False  # compute its masks in the calling thread, where CPU time is measured

    @property
    def is_over(self) -> bool:
        """True when the output is complete and no token may follow."""
        return not self.error and self.matcher.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """True when the output is complete, though more may follow."""
        return not self.error and self.matcher.is_accepting()

    def count_use(self, used_s: float) -> None:
        """Count CPU time that another thread has spent on the matcher."""
        self._compiled.used_s += used_s

    def fill_mask(self, row: Mask) -> None:
        """Set the bits of the tokens that may come next, including EOS once the output is complete."""
        before_s = self._token_budget.left_s
        self._fill(row, ())
        self.is_slow = before_s - self._token_budget.left_s > PER_TOKEN_S

    def fill_masks(self, rows: Mask, drafts: Draft) -> None:
        """Fill the masks of [k + 1, W] rows: row 0 before the k draft tokens, row i + 1 after draft token i.

        In a tree, row i + 1 is the mask after node i. Rows after a forbidden draft token stay unchanged:
        no token there can be accepted.
        """
        if isinstance(drafts, DraftTree):
            self.fill_mask(rows[0])
            for node in self._walk(drafts):
                self._fill(rows[node + 1], _path(drafts, node))
            return
        num_drafted = 0
        self.fill_mask(rows[0])
        for i, token_id in enumerate(drafts):
            if self.error or not self._try_advance(token_id, drafts[:num_drafted]):
                break
            num_drafted += 1
            self._fill(rows[i + 1], drafts[:num_drafted])
        self._rollback_matcher(num_drafted)

    def advance(self, token_id: int) -> None:
        """Accept a token of the output."""
        if not self.error:
            self._accepted.append(token_id)
            with self._token_budget:
                self.matcher.consume_token(token_id)
            self._token_budget.refill()
            self._draft_budget.refill()
            self._recover(())
            self._update_error()

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens."""
        if not self.error and num_tokens:
            del self._accepted[-num_tokens:]
            self._rollback_matcher(num_tokens)

    def filter_drafts(self, token_ids: list[int]) -> int:
        """Return the length of the longest prefix of these tokens that the grammar accepts."""
        if not self._accepts_drafts:
            return 0
        with self._draft_budget:
            return self.matcher.validate_tokens(token_ids)

    def allowed_nodes(self, tree: DraftTree) -> list[int]:
        """Return the nodes whose path from the root the grammar accepts, in ascending order."""
        return sorted(self._walk(tree)) if self._accepts_drafts else []

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next (jump-forward decoding); empty when there is a choice."""
        if not self._accepts_drafts:
            return []
        with self._draft_budget:
            return self.matcher.compute_ff_tokens()

    @property
    def _accepts_drafts(self) -> bool:
        is_possible = self._compiled.accepts_drafts and not self.error and not self.matcher.is_stopped()
        return is_possible and not self._draft_budget.is_exhausted

    def _walk(self, tree: DraftTree) -> Iterator[int]:
        """Yield each accepted node in depth-first order with the matcher after it; restore the state."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents):
            children.setdefault(parent, []).append(node)
        # For each node on the current path, and the root: its children still to visit.
        path: list[list[int]] = [children.get(-1, [])[::-1]]
        while path:
            if not path[-1] or self.error:
                path.pop()
                if path:
                    self._rollback_matcher(1)
                continue
            node = path[-1].pop()
            if self._try_advance(tree.tokens[node], _path(tree, tree.parents[node])):
                path.append(children.get(node, [])[::-1])
                yield node

    def _fill(self, row: Mask, drafted: Sequence[int]) -> None:
        """`fill_mask` with the matcher after the accepted tokens and `drafted`."""
        if not self.error:
            self._compute(row, drafted)
            if self.matcher.is_error() and self._recover(drafted):
                self._compute(row, drafted)
            self._update_error()
        if self.error:
            row.fill(-1)

    def _compute(self, row: Mask, drafted: Sequence[int]) -> None:
        with self._draft_budget if drafted else self._token_budget:
            self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def _try_advance(self, token_id: int, drafted: Sequence[int]) -> bool:
        """Advance the matcher by a draft token that follows `drafted`; return False if it is forbidden."""
        with self._draft_budget:
            is_allowed = bool(self.matcher.try_consume_tokens([token_id]))
        if self.matcher.is_error() and self._recover(drafted):
            is_allowed = bool(self.matcher.try_consume_tokens([token_id]))
            self._update_error()
        return is_allowed

    def _rollback_matcher(self, num_tokens: int) -> None:
        if num_tokens and not self.error:
            self.matcher.rollback(num_tokens)
            self._update_error()

    def _recover(self, drafted: Sequence[int]) -> bool:
        """If the matcher met a limit, replay on a rebuilt one; return False if that fails as well."""
        if self.matcher.is_error():
            initial = self._compiled.replacement_for(self._initial)
            if initial is not None:
                self._initial, self.matcher = initial, initial.deep_copy()
                self._replay([*self._accepted, *drafted])
            self._update_error()
        return not self.error

    def _replay(self, tokens: list[int]) -> None:
        """Consume these tokens within a CPU budget; set `error` when it is exhausted."""
        budget = CpuBudget(self._compiled)
        for i in range(0, len(tokens), _REPLAY_CHUNK_TOKENS):
            with budget:
                self.matcher.consume_tokens(tokens[i : i + _REPLAY_CHUNK_TOKENS])
            if budget.is_exhausted:
                self._fail(_TOO_SLOW)
                return

    def _update_error(self) -> None:
        """Set `error` if the matcher has failed or the CPU budget is exhausted."""
        if self.matcher.is_error():
            self._fail(generation_error(self.matcher))
        elif self._token_budget.is_exhausted:
            self._fail(_TOO_SLOW)

    def _fail(self, error: str) -> None:
        """End the request; the automaton has grown large on the way, so no cache should keep it."""
        self.error = error
        self._compiled.is_exhausted = True


def _path(tree: DraftTree, node: int) -> list[int]:
    """Return the tokens from the root to a node, inclusive; empty for the root, -1."""
    found: list[int] = []
    while node >= 0:
        found.append(tree.tokens[node])
        node = tree.parents[node]
    return found[::-1]

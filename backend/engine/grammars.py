"""The grammars of sequences: waiting for their compilation, and constraining drafts by them."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING

from backend.engine.step_report import GrammarReport
from backend.errors import RequestError, TryAgain
from backend.types import Draft, DraftTree, Request, ScheduledChunk, Sequence, SequenceStatus, TokenGrammar

if TYPE_CHECKING:
    from backend.structured.compiled_grammar import CompiledGrammar
    from backend.structured.compiler import GrammarCompiler

_PAUSE_S = 0.005
"""Longest wait of a step that has nothing to compute before a grammar is compiled."""

_MAX_FORCED = 16
"""Forced tokens drafted at once. The model may tokenize the same text differently, which rejects them."""


class Grammars:
    """Gives sequences their compiled grammars; the scheduler skips a sequence that still waits for its own.

    Also a DraftConstraint: tokens that a grammar forces become drafts, and drafts that it forbids are cut.
    """

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._pending: dict[Sequence, Future[CompiledGrammar]] = {}
        self._forced: dict[
            Sequence, tuple[int, list[int]]
        ] = {}  # (len(tokens) before, forced tokens drafted)
        self._num_forced = 0  # forced tokens in outputs since the last report

    @property
    def has_pending(self) -> bool:
        """Whether a sequence waits for its grammar."""
        return bool(self._pending)

    def submit(self, request: Request) -> Future[CompiledGrammar] | None:
        """Start compiling; None for requests without a grammar. Raises RequestError or QueueFull."""
        if request.grammar is None:
            return None
        if self._compiler is None:
            raise RequestError("this model has no tokenizer, which grammars need", request.grammar.param)
        return self._compiler.submit(request.grammar, request.tenant_salt)

    def block(self, sequence: Sequence, compiled: Future[CompiledGrammar]) -> None:
        """Keep a queued sequence from running until `settle` finds `compiled` done."""
        sequence.is_blocked = True
        self._pending[sequence] = compiled

    def settle(self) -> list[tuple[Sequence, RequestError | TryAgain]]:
        """Unblock sequences whose grammar is compiled; returns those whose grammar was rejected, and why."""
        from backend.structured.compiler import new_grammar  # an engine runs without llguidance too

        if self._compiler is not None:
            self._compiler.resume()
        rejected: list[tuple[Sequence, RequestError | TryAgain]] = []
        for sequence, compiled in list(self._pending.items()):
            if not compiled.done():
                continue
            del self._pending[sequence]
            try:
                sequence.grammar = new_grammar(compiled)
                for token_id in sequence.request.resume_token_ids:
                    sequence.grammar.advance(token_id)
            except (RequestError, TryAgain) as error:
                rejected.append((sequence, error))
            sequence.is_blocked = False
        return rejected

    def pause(self) -> None:
        """Wait a moment for the next grammar to be compiled."""
        wait(self._pending.values(), _PAUSE_S, FIRST_COMPLETED)

    def close(self) -> None:
        """Stop the compiler."""
        if self._compiler is not None:
            self._compiler.close()

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended."""
        self._pending.pop(sequence, None)
        self._count_forced(sequence)
        if self._compiler is not None and sequence.grammar is not None and sequence.grammar.error:
            self._compiler.drop_failed()

    def report(self, mask_s: float) -> GrammarReport | None:
        """Grammar work since the last report; None if there was none."""
        compile_s = [] if self._compiler is None else self._compiler.take_times()
        if not (mask_s or compile_s or self._num_forced):
            return None
        num_forced, self._num_forced = self._num_forced, 0
        return GrammarReport(mask_s, compile_s, num_forced)

    def forced(self, sequence: Sequence) -> list[int]:
        """Tokens of the text that the grammar forces next: at most 1 + twice as many as last accepted."""
        num_kept = self._count_forced(sequence)
        if sequence.grammar is None or not (forced := sequence.grammar.forced_tokens()):
            return []
        limit = _MAX_FORCED if num_kept is None else min(_MAX_FORCED, 1 + 2 * num_kept)
        self._forced[sequence] = len(sequence.tokens), forced[:limit]
        return forced[:limit]

    def may_force(self, sequence: Sequence) -> bool:
        """Whether the grammar forces tokens after those that have been read."""
        return sequence.grammar is not None and bool(sequence.grammar.forced_tokens())

    def _count_forced(self, sequence: Sequence) -> int | None:
        """How many of its last forced drafts are in the output; None if there were none. Counts them once."""
        if (last := self._forced.pop(sequence, None)) is None:
            return None
        start, forced = last
        num_kept = sum(map(int.__eq__, forced, sequence.tokens[start : start + len(forced)]))
        self._num_forced += num_kept
        return num_kept

    def num_allowed(self, sequence: Sequence, draft: list[int]) -> int:
        """How many tokens of a draft, from the first on, the grammar allows."""
        return len(draft) if sequence.grammar is None else sequence.grammar.filter_drafts(draft)

    def prune(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
        """The nodes of a draft tree that the grammar allows."""
        return tree if sequence.grammar is None else tree.keep(sequence.grammar.allowed_nodes(tree))


def masked_draws(sampled: list[ScheduledChunk]) -> list[tuple[int, TokenGrammar, Draft]]:
    """For each chunk with a grammar: the index of its first draw, the grammar, and the chunk's draft."""
    found: list[tuple[int, TokenGrammar, Draft]] = []
    first = 0
    for chunk in sampled:
        sequence = chunk.sequence
        # One that ended after the step was launched draws a token that is dropped.
        if (grammar := sequence.grammar) is not None and sequence.status is SequenceStatus.RUNNING:
            found.append((first, grammar, chunk.guess))
        first += 1 + len(chunk.draft)
    return found


def advance_drafts(grammar: TokenGrammar, tokens: list[int]) -> int | None:
    """Advance over accepted drafts, up to the one that completes the output: its index, or None."""
    for index, token_id in enumerate(tokens):
        grammar.advance(token_id)
        if grammar.is_over:
            grammar.rollback(1)
            return index
    return None

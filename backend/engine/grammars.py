"""Sequences and their grammars: who still waits for one, and what a grammar says about drafts."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait

from backend.engine.report import GrammarReport
from backend.errors import RequestError
from backend.structured.compiled_grammar import CompiledGrammar
from backend.structured.compiler import GrammarCompiler, new_grammar
from backend.types import Draft, DraftTree, Request, ScheduledChunk, Sequence, TokenGrammar

_PAUSE_S = 0.005
"""A step that has nothing to do but to wait for grammars waits so long at most."""

_MAX_FORCED = 16
"""Forced tokens drafted at a time. The model may spell the same text otherwise, which rejects them."""


class Grammars:
    """Hands sequences their grammars once compiled; until then the queue passes them over.

    Also a DraftConstraint: tokens that a grammar forces are drafts, tokens that it forbids are not.
    """

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._pending: dict[Sequence, Future[CompiledGrammar]] = {}
        self._forced: dict[Sequence, tuple[int, list[int]]] = {}  # tokens it had when these were drafted
        self._num_forced = 0  # tokens in outputs, since the last report

    @property
    def has_pending(self) -> bool:
        """True while a sequence waits for its grammar."""
        return bool(self._pending)

    def submit(self, request: Request) -> Future[CompiledGrammar] | None:
        """Begin to compile; None for requests without a grammar. Raises RequestError or QueueFull."""
        if request.grammar is None:
            return None
        if self._compiler is None:
            raise RequestError("this model has no tokenizer to write grammars in", request.grammar.param)
        return self._compiler.submit(request.grammar, request.tenant_salt)

    def follow(self, sequence: Sequence, found: Future[CompiledGrammar]) -> None:
        """The sequence is in the queue and waits for `found`; `settle` lets it go."""
        sequence.is_blocked = True
        self._pending[sequence] = found

    def settle(self) -> list[tuple[Sequence, RequestError]]:
        """Unblock the sequences whose grammars are there; returns those whose grammars are refused."""
        refused: list[tuple[Sequence, RequestError]] = []
        for sequence, found in list(self._pending.items()):
            if not found.done():
                continue
            del self._pending[sequence]
            try:
                sequence.grammar = new_grammar(found)
            except RequestError as error:
                refused.append((sequence, error))
            sequence.is_blocked = False
        return refused

    def pause(self) -> None:
        """Wait for a grammar to be there, for a moment at most."""
        wait(self._pending.values(), _PAUSE_S, FIRST_COMPLETED)

    def close(self) -> None:
        """Nothing more will be compiled."""
        if self._compiler is not None:
            self._compiler.close()

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._pending.pop(sequence, None)
        self._count_forced(sequence)

    def report(self, mask_s: float) -> GrammarReport | None:
        """What happened since the last report; None when nothing did."""
        compile_s = [] if self._compiler is None else self._compiler.take_times()
        if not (mask_s or compile_s or self._num_forced):
            return None
        num_forced, self._num_forced = self._num_forced, 0
        return GrammarReport(mask_s, compile_s, num_forced)

    def forced(self, sequence: Sequence) -> list[int]:
        """Tokens that spell what must come next: twice as many as of the last ones were kept, and one."""
        num_kept = self._count_forced(sequence)
        if sequence.grammar is None or not (forced := sequence.grammar.forced_tokens()):
            return []
        limit = _MAX_FORCED if num_kept is None else min(_MAX_FORCED, 1 + 2 * num_kept)
        self._forced[sequence] = len(sequence.tokens), forced[:limit]
        return forced[:limit]

    def _count_forced(self, sequence: Sequence) -> int | None:
        """How many of the tokens that were last drafted for it are in the output; None: there were none."""
        if (last := self._forced.pop(sequence, None)) is None:
            return None
        start, forced = last
        num_kept = sum(map(int.__eq__, forced, sequence.tokens[start : start + len(forced)]))
        self._num_forced += num_kept
        return num_kept

    def num_allowed(self, sequence: Sequence, draft: list[int]) -> int:
        """How many tokens of a draft may come."""
        return len(draft) if sequence.grammar is None else sequence.grammar.filter_drafts(draft)

    def prune(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
        """The nodes of a tree that may come."""
        return tree if sequence.grammar is None else tree.keep(sequence.grammar.allowed_nodes(tree))


def masked_draws(sampled: list[ScheduledChunk]) -> list[tuple[int, TokenGrammar, Draft]]:
    """For each chunk with a grammar: the index of its first draw, the grammar, and the drafts behind."""
    found: list[tuple[int, TokenGrammar, Draft]] = []
    first = 0
    for chunk in sampled:
        if (grammar := chunk.sequence.grammar) is not None:
            found.append((first, grammar, chunk.guess))
        first += 1 + len(chunk.draft)
    return found


def advance_drafts(grammar: TokenGrammar, tokens: list[int]) -> int | None:
    """Advance over accepted drafts; stops before one that completes the output and returns its index."""
    for index, token_id in enumerate(tokens):
        grammar.advance(token_id)
        if grammar.is_over:
            grammar.rollback(1)
            return index
    return None

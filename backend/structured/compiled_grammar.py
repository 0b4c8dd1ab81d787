"""llguidance source → a matcher in its initial state, within memory limits that also bound later steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from backend.structured.dates import with_calendar_dates
from backend.structured.grammar_errors import error_summary, gbnf_explanation
from backend.structured.heap import allocated_bytes
from backend.structured.llguidance_source import UNPARSED
from backend.structured.schema_relaxation import countable, relaxed
from backend.structured.vocabulary import Vocabulary

_LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""A lexer state takes 1 to 2 KiB. The CPU time per token is bounded by `cpu_budget`."""

GROWTH_BYTES_PER_S = 768 << 20
"""Upper bound on the growth of a lexer automaton per second of CPU time; measured: 113 to 310 MB/s."""

MAX_GROWTH_BYTES = 128 << 20
"""Upper bound on the growth until the limit of lexer states; measured: at most 119 MB."""


class CompiledGrammar:
    """A matcher in its initial state, copied for each sequence that uses the grammar.

    The copies share one lexer automaton, which grows with every token that any of them tries, rejected draft
    tokens included. Some grammars reach the limit of states in this way; their sequences then continue with a
    rebuilt matcher.
    """

    __slots__ = (
        "__weakref__",
        "_rebuild",
        "accepts_drafts",
        "is_exhausted",
        "matcher",
        "num_bytes",
        "used_s",
    )

    def __init__(
        self,
        matcher: LLMatcher,
        rebuild: Callable[[], LLMatcher] | None = None,
        num_bytes: int = 0,
        *,
        accepts_drafts: bool = True,
    ) -> None:
        """`rebuild`: None if it takes too long to be done between two steps; `num_bytes`: as measured.

        `accepts_drafts`: llguidance cannot roll back where it counts tokens.
        """
        self.accepts_drafts = accepts_drafts
        self.matcher = matcher
        self.num_bytes = num_bytes
        self.used_s = 0.0  # CPU time of all sequences
        self.is_exhausted = False  # it met a limit: compile again before the next use
        self._rebuild = rebuild

    @property
    def growth_bytes(self) -> int:
        """Upper estimate of what use has added: llguidance does not tell the size of its automata."""
        return min(MAX_GROWTH_BYTES, int(self.used_s * GROWTH_BYTES_PER_S))

    @property
    def is_cheap(self) -> bool:
        """True if it builds fast, so that it need not be kept once it may have grown."""
        return self._rebuild is not None

    def replacement_for(self, exhausted: LLMatcher) -> LLMatcher | None:
        """Return the initial state to use after `exhausted` led to a limit; None if there is none."""
        if self.matcher is exhausted:
            if self._rebuild is None:
                self.is_exhausted = True
                return None
            self.matcher = self._rebuild()
            self.used_s = 0.0
        return self.matcher


def parsed(source: str) -> str:
    """Return the source with a body left unparsed converted to Lark. May take long: for the sandbox.

    Raises ValueError with the reason, which quotes nothing of the body.
    """
    if UNPARSED not in source:
        return source
    whole = json.loads(source)
    for grammar in whole["grammars"]:
        if UNPARSED in grammar:
            try:
                grammar["lark_grammar"] = any_to_lark(grammar.pop(UNPARSED))
            except Exception as error:  # noqa: BLE001 - the converter raises its own types
                raise ValueError(gbnf_explanation(str(error))) from None
    return json.dumps(whole)


class Compilable(NamedTuple):
    """Source in the form that `build` accepts, and the memory that its matcher takes."""

    source: str
    num_bytes: int


def compilable(source: str, vocabulary: Vocabulary) -> Compilable:
    """Return the source in the form that `build` accepts, relaxed if necessary.

    May take long, and measures the whole process: for the sandbox. Raises ValueError as `build` does.
    """
    source = countable(with_calendar_dates(parsed(source)))
    try:
        return Compilable(source, _built_bytes(source, vocabulary))
    except ValueError:
        if (relaxed_source := relaxed(source)) == source:
            raise
    return Compilable(relaxed_source, _built_bytes(relaxed_source, vocabulary))


def _built_bytes(source: str, vocabulary: Vocabulary) -> int:
    before = allocated_bytes()
    matcher = build(source, vocabulary)
    num_bytes = allocated_bytes() - before
    del matcher  # measured while it was alive
    return max(0, num_bytes)


def build(source: str, vocabulary: Vocabulary) -> LLMatcher:
    """Return the matcher with its first mask computed. Raises ValueError with llguidance's reason."""
    matcher = LLMatcher(vocabulary.ll_tokenizer, source, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        row = np.zeros(vocabulary.num_mask_words, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if not matcher.is_error() and not row.any():
            raise ValueError("nothing satisfies it")
    if matcher.is_error():
        raise ValueError(error_summary(matcher))
    return matcher

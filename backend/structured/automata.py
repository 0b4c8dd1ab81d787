"""The library's text → an automaton at its start, within limits of memory that hold for later steps too."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from backend.structured.automaton_text import UNREAD
from backend.structured.dates import with_real_dates
from backend.structured.lenient import loosened
from backend.structured.reason import reason
from backend.structured.vocabulary import Vocabulary

_LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""States take 1 to 2 KiB each. What a token may take in time is bounded elsewhere (`allowance`)."""


class Automaton:
    """A grammar's automaton at its start, for all sequences that follow it.

    What it was asked by any of them stays in it, by way of rejected drafts too: sooner or later that takes
    some grammars to the limit of states, and whoever follows must go on with one that was built anew.
    """

    __slots__ = ("_build_anew", "is_spent", "matcher")

    def __init__(self, matcher: LLMatcher, build_anew: Callable[[], LLMatcher] | None = None) -> None:
        """`build_anew`: None when that takes too long to be done between two steps."""
        self.matcher = matcher
        self.is_spent = False  # nobody should begin with it any more
        self._build_anew = build_anew

    def successor_of(self, spent: LLMatcher) -> LLMatcher | None:
        """The start to be used in place of one that has led to a limit; None when there is none."""
        if self.matcher is spent:
            if self._build_anew is None:
                self.is_spent = True
                return None
            self.matcher = self._build_anew()
        return self.matcher


def read(text: str) -> str:
    """The text with a body that was left unread, if any, as Lark. Takes time: for the sandbox."""
    if UNREAD not in text:
        return text
    whole = json.loads(text)
    for grammar in whole["grammars"]:
        if UNREAD in grammar:
            grammar["lark_grammar"] = any_to_lark(grammar.pop(UNREAD))
    return json.dumps(whole)


def compilable(text: str, vocabulary: Vocabulary) -> str:
    """The text as `build` takes it. For the sandbox, as `read`. Raises ValueError as `build` does."""
    text = with_real_dates(read(text))
    try:
        build(text, vocabulary)
    except ValueError:
        if (looser := loosened(text)) == text:
            raise
        build(looser, vocabulary)
        return looser
    return text


def build(text: str, vocabulary: Vocabulary) -> LLMatcher:
    """The automaton with its first mask computed. Raises ValueError with the library's reason."""
    matcher = LLMatcher(vocabulary.automata, text, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        row = np.zeros(vocabulary.num_mask_words, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if not matcher.is_error() and not row.any():
            raise ValueError("nothing satisfies it")
    if matcher.is_error():
        raise ValueError(reason(matcher))
    return matcher

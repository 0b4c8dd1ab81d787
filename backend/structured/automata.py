"""The library's text → an automaton at its start, within limits that bound every later step as well."""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from backend.structured.grammar import reason
from backend.structured.vocabulary import Vocabulary

_LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""The library's defaults bound one mask to some 20 ms; states take 1 to 2 KiB each."""


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

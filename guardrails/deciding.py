"""Which words of a window decided: those without which its score is lowest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import regex
from numpy.typing import NDArray

from guardrails.checks.classifier import HEADS, Score, load_classifier

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""(texts, dimensions), of unit length."""

MAX_WORDS = 40
NUM_SHOWN = 3
_WORD = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]{1,2}|[\p{L}\p{M}\p{N}'’-]+")
"""Where no spaces stand between words, two characters count as one."""


def deciding_words(head: str, score: Score, embed: Embed) -> list[str]:
    """The words of the worst window that raise the score most, the most important first."""
    spans = [match.span() for match in _WORD.finditer(score.window)][:MAX_WORDS]
    if not spans:
        return []
    without = [f"{score.window[:start]} {score.window[end:]}." for start, end in spans]
    texts = [score.window, *without]
    logits = load_classifier().logits(texts, embed(texts), [score.language] * len(texts))
    column = logits[:, HEADS.index(head)]
    drops = column[0] - column[1:]
    order = np.argsort(-drops)[:NUM_SHOWN]
    return [score.window[slice(*spans[number])] for number in order if drops[number] > 0]

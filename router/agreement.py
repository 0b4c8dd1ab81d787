"""How far two answers to one question say the same: a label for the one where the other is right."""

from __future__ import annotations

import re

from router.cascade import is_refusal

SHORT_WORDS = 6
"""Up to this length answers agree or not; longer ones are compared by meaning as well."""
LOW_COSINE, HIGH_COSINE = 0.6, 0.95
"""Cosines of the sentence vectors: nothing in common, the same."""
_WORD = re.compile(r"\w+", re.UNICODE)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def agreement(answer: str, right: str, cosine: float | None = None) -> float:
    """0 to 1. `cosine` of both sentence vectors; None: only words are compared."""
    said, wanted = _WORD.findall(answer.casefold()), _WORD.findall(right.casefold())
    if said == wanted:
        return 1.0
    if is_refusal(answer) != is_refusal(right) or min(len(said), len(wanted)) == 0:
        return 0.0
    if set(_NUMBER.findall(answer)) != set(_NUMBER.findall(right)) and len(wanted) <= 4 * SHORT_WORDS:
        return 0.0
    if len(wanted) <= SHORT_WORDS:  # "Paris." answers as "It is Paris." does
        return float(_is_in(wanted, said) or _is_in(said, wanted))
    if cosine is not None:
        return min(1.0, max(0.0, (cosine - LOW_COSINE) / (HIGH_COSINE - LOW_COSINE)))
    common = len(set(said) & set(wanted))
    return 2 * common / (len(set(said)) + len(set(wanted)))


def _is_in(part: list[str], whole: list[str]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))

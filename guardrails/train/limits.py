"""Chooses thresholds on ordinary texts of sources that were left out of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from guardrails.checks.classifier import FALSE_POSITIVE_RATES, HEADS, KINDS
from guardrails.train.bags import Array

SHARES = {"attack": 1.0, "harmful_topic": 0.6, "toxicity": 0.5, "hate": 0.5, "harassment": 0.5}
"""Heads of a strict profile, and their parts of its rate: the share of texts that any of them flags."""
WORST = 2.0
"""No source of ordinary texts is flagged more often than the rate times this."""
_STEPS = 60
_INDIRECT = HEADS.index("indirect")
_ATTACKS = [HEADS.index(name) for name in ("attack", *KINDS)]
_OF_USERS = [head for head in range(len(HEADS)) if head != _INDIRECT]
_LOWEST = -30.0


def limits(
    logits: Array, sources: Sequence[str], is_document: NDArray[np.bool_], is_harmless: NDArray[np.bool_]
) -> Array:
    """[H, R]: logits that a rate's share of the ordinary texts reaches; each source counts alike.

    `is_harmless`: whether it is known that a text is; of others, attacks alone count.
    """
    logits = logits.copy()
    unknown = np.flatnonzero(~is_harmless & ~is_document)
    for head in set(_OF_USERS) - set(_ATTACKS):
        logits[unknown, head] = _LOWEST
    names = np.array(sources)
    found = np.zeros((len(HEADS), len(FALSE_POSITIVE_RATES)), np.float32)
    documents = np.flatnonzero(is_document)
    for rows, heads in ((np.flatnonzero(~is_document), _OF_USERS), (documents, [_INDIRECT])):
        kept = rows if len(rows) else np.arange(len(logits))
        for number, rate in enumerate(FALSE_POSITIVE_RATES):
            found[heads, number] = _cuts(logits[kept], names[kept], rate, heads)
    return np.maximum.accumulate(found, axis=1)


def _cuts(logits: Array, names: NDArray[np.str_], rate: float, heads: Sequence[int]) -> Array:
    """[heads]: those at which all heads that count together flag `rate`, and no source much more."""
    weights = _weights(names)
    together = [number for number, head in enumerate(heads) if HEADS[head] in SHARES or len(heads) == 1]
    cuts = np.zeros(len(heads), np.float32)
    for each in rate * np.geomspace(1, 1 / 25, _STEPS):
        cuts = np.array(
            [_quantile(logits[:, head], weights, each * SHARES.get(HEADS[head], 1.0)) for head in heads],
            np.float32,
        )
        flagged = np.asarray((logits[:, heads] > cuts)[:, together].any(1))
        worst = max(flagged[names == name].mean() for name in set(names))
        if weights[flagged].sum() <= rate and worst <= max(WORST * rate, 2 / len(logits)):
            break
    return cuts


def _weights(names: NDArray[np.str_]) -> Array:
    _, index, counts = np.unique(names, return_inverse=True, return_counts=True)
    return np.asarray(1 / (counts[index] * len(counts)), np.float32)


def _quantile(values: Array, weights: Array, rate: float) -> float:
    """Above this lies `rate` of the weight."""
    order = np.argsort(values)[::-1]
    at = int(np.searchsorted(np.cumsum(weights[order]), rate))
    return float(values[order[min(at, len(order) - 1)]])

from __future__ import annotations

import numpy as np
import pytest

from guardrails.checks.classifier import FALSE_POSITIVE_RATES, HEADS
from guardrails.train.limits import SHARES, limits

TOGETHER = [HEADS.index(name) for name in SHARES]
DRAW = np.random.default_rng(0)


def flagged(logits: np.ndarray, found: np.ndarray, rate: float) -> np.ndarray:  # type: ignore[type-arg]
    cuts = found[:, FALSE_POSITIVE_RATES.index(rate)]
    hits: np.ndarray = (logits > cuts)[:, TOGETHER].any(1)  # type: ignore[type-arg]
    return hits


@pytest.mark.parametrize("rate", [0.05, 0.01])
def test_a_rate_holds_for_all_heads_together(rate: float) -> None:
    logits = DRAW.normal(size=(6_000, len(HEADS))).astype(np.float32)
    nobody = np.zeros(len(logits), np.bool_)
    found = limits(logits, ["a", "b"] * 3_000, nobody, ~nobody)
    assert 0.5 * rate < flagged(logits, found, rate).mean() <= 1.1 * rate


def test_no_source_is_flagged_much_more_often_than_the_rate() -> None:
    logits = DRAW.normal(size=(4_000, len(HEADS))).astype(np.float32)
    logits[:400] += 1.5  # one source of ten
    sources = np.repeat([f"s{number}" for number in range(10)], 400)
    nobody = np.zeros(len(logits), np.bool_)
    found = limits(logits, list(sources), nobody, ~nobody)
    assert flagged(logits[:400], found, 0.05).mean() <= 0.1


def test_texts_that_may_be_harmful_move_no_threshold_of_harm() -> None:
    logits = DRAW.normal(size=(2_000, len(HEADS))).astype(np.float32)
    nobody = np.zeros(len(logits), np.bool_)
    head = HEADS.index("harmful_topic")
    known = np.arange(len(logits)) % 2 == 0
    sources = ["checked" if each else "unchecked" for each in known]
    before = limits(logits, sources, nobody, known)[head]
    logits[~known, head] += 5
    assert np.allclose(limits(logits, sources, nobody, known)[head], before)


def test_thresholds_rise_with_strictness() -> None:
    logits = DRAW.normal(size=(500, len(HEADS))).astype(np.float32)
    documents = np.arange(500) % 2 == 0
    found = limits(logits, ["a"] * 500, documents, ~documents)
    assert (np.diff(found, axis=1) >= 0).all()

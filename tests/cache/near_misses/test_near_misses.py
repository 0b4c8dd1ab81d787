"""None of 25 near misses of any kind is served, and most paraphrases are."""

from __future__ import annotations

from collections import defaultdict

import pytest

from backend.encoder.corpus import vectors_by_text
from cache.verify import Verifier
from gateway.evaluation.cache.judging import Judge, is_stopped
from tests.cache.near_misses import Generator, Pair

COUNT = 25
MAX_FALSE_SHARE = 0.01


@pytest.fixture(scope="module")
def served() -> dict[tuple[str, bool], list[tuple[Pair, bool]]]:
    """Every pair by kind and by whether one answer serves both, with whether the cache serves it."""
    pairs = list(Generator().pairs(COUNT))
    readable = [pair for pair in pairs if not is_stopped(pair.a, pair.b)]
    judge = Judge(Verifier.load(), vectors_by_text([text for pair in readable for text in pair[:2]], None))
    threshold = Verifier.load().threshold(MAX_FALSE_SHARE)
    found = defaultdict(list)
    for pair in pairs:
        is_served = judge.is_served(pair.a, pair.b, threshold)
        found[pair.kind, pair.same].append((pair, is_served))
    return found


def test_no_near_miss_is_served(served: dict[tuple[str, bool], list[tuple[Pair, bool]]]) -> None:
    wrong = [
        pair for (_, same), pairs in served.items() if not same for pair, is_served in pairs if is_served
    ]
    assert wrong == []


def test_most_paraphrases_are_served(served: dict[tuple[str, bool], list[tuple[Pair, bool]]]) -> None:
    right = [is_served for (_, same), pairs in served.items() if same for _, is_served in pairs]
    assert sum(right) >= 0.6 * len(right) > 60


def test_there_are_many_kinds_with_enough_pairs(
    served: dict[tuple[str, bool], list[tuple[Pair, bool]]],
) -> None:
    kinds = {kind: len(pairs) for (kind, same), pairs in served.items() if not same}
    assert len(kinds) >= 40 and min(kinds.values()) == COUNT

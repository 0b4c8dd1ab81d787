"""Replays a stream of questions through an exact tier and a semantic tier at any threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.measures import wilson
from cache.question import normalised

NUM_CANDIDATES = 5
NUM_KEPT = 32
"""Nearest earlier questions that are kept, as those that were served themselves are not stored."""
_BLOCK = 512

Array = NDArray[np.float32]
Judge = Callable[[int, Sequence[int], Array], Array]
"""(question, candidates, their cosines) → scores; questions by number."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One replay."""

    threshold: float
    num_requests: int
    num_exact_only: int  # hits of the exact tier alone
    num_hits: int  # of both tiers
    num_false: int  # hits with another question's answer
    num_semantic: int
    saved_share: float  # of all tokens of the questions: in those that were hits

    @property
    def hit_ratio(self) -> float:
        """Hits per request."""
        return self.num_hits / self.num_requests

    @property
    def false_share(self) -> float:
        """False hits per hit."""
        return self.num_false / max(1, self.num_hits)

    @property
    def false_interval(self) -> tuple[float, float]:
        """95 % interval of the false share."""
        return wilson(self.num_false, self.num_hits)

    @property
    def beyond_exact(self) -> float:
        """Hits per request that the exact tier alone would not have."""
        return (self.num_hits - self.num_exact_only) / self.num_requests


class Replay:
    """A stream with the nearest earlier questions of each, found once for all thresholds."""

    def __init__(
        self,
        questions: Sequence[str],
        answer_ids: Sequence[str],
        vectors: Array,
        num_tokens: Sequence[int] | None = None,
    ) -> None:
        """`num_tokens`: of each question; None: they are equally long."""
        self._num_tokens = np.ones(len(questions), np.int64) if num_tokens is None else np.array(num_tokens)
        self._answers = answer_ids
        first: dict[str, int] = {}
        self._first = [first.setdefault(normalised(question), i) for i, question in enumerate(questions)]
        self.num_exact = sum(one != i for i, one in enumerate(self._first))
        self._near = self._nearest(vectors)
        self._scores: dict[Judge, dict[int, dict[int, float]]] = {}

    def _nearest(self, vectors: Array) -> dict[int, tuple[NDArray[np.int64], Array]]:
        """For each question that equals no earlier one: the nearest earlier such ones, with cosines."""
        distinct = np.array([i for i, one in enumerate(self._first) if one == i])
        found = {}
        for start in range(0, len(distinct), _BLOCK):
            block = distinct[start : start + _BLOCK]
            earlier = distinct[: start + len(block)]
            cosines = vectors[block] @ vectors[earlier].T
            cosines[earlier[None, :] >= block[:, None]] = -2
            kept = min(NUM_KEPT, len(earlier))
            top = np.argpartition(-cosines, kept - 1, axis=1)[:, :kept]
            for row, i in enumerate(block):
                near = top[row][np.argsort(-cosines[row, top[row]], kind="stable")]
                near = near[cosines[row, near] > -2]
                found[int(i)] = earlier[near], cosines[row, near]
        return found

    def run(self, threshold: float, judge: Judge) -> Outcome:
        """Serve the best-scored of the five nearest stored questions when its score reaches the threshold."""
        memory = self._scores.setdefault(judge, {})
        is_stored = np.zeros(len(self._answers), bool)
        is_hit = np.zeros(len(self._answers), bool)
        num_false = num_semantic = 0
        for i, answer in enumerate(self._answers):
            key = self._first[i]
            if key != i and is_stored[key]:
                is_hit[i] = True
                num_false += self._answers[key] != answer
                continue
            near, cosines = self._near[key]
            places = np.flatnonzero(is_stored[near])[:NUM_CANDIDATES]
            scores = self._judged(memory.setdefault(key, {}), judge, key, near[places], cosines[places])
            best = int(np.argmax(scores)) if len(scores) else -1
            if best >= 0 and scores[best] >= threshold:
                is_hit[i] = True
                num_semantic += 1
                num_false += self._answers[near[places][best]] != answer
            else:
                is_stored[key] = True
        saved = float(self._num_tokens[is_hit].sum() / self._num_tokens.sum())
        counts = self.num_exact, int(is_hit.sum()), num_false, num_semantic
        return Outcome(threshold, len(self._answers), *counts, saved)

    def _judged(
        self, memory: dict[int, float], judge: Judge, key: int, near: NDArray[np.int64], cosines: Array
    ) -> list[float]:
        missing = [place for place, each in enumerate(near) if int(each) not in memory]
        if missing:
            scores = judge(key, [int(each) for each in near[missing]], cosines[missing])
            memory.update(zip((int(each) for each in near[missing]), map(float, scores), strict=True))
        return [memory[int(each)] for each in near]


def best_within(outcomes: Sequence[Outcome], max_false_share: float) -> Outcome | None:
    """The outcome with the most hits whose false share stays within the bound."""
    allowed = [outcome for outcome in outcomes if outcome.false_share <= max_false_share]
    return max(allowed, key=lambda outcome: outcome.num_hits, default=None)


def finest(
    replay: Replay, judge: Judge, outcomes: Sequence[Outcome], max_false_share: float
) -> Outcome | None:
    """The best within the bound, with more thresholds tried below the best of `outcomes`."""
    best = best_within(outcomes, max_false_share)
    if best is None:
        return None
    below = max((each.threshold for each in outcomes if each.threshold < best.threshold), default=None)
    if below is None:
        return best
    finer = [replay.run(float(t), judge) for t in np.linspace(below, best.threshold, 12)[1:-1]]
    return best_within([best, *finer], max_false_share)

"""Runs the text checks over many texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.cli.evaluation.vectors import embed_all
from guardrails.checks import classifier
from guardrails.checks.injection import find_injection
from guardrails.findings import Segment
from guardrails.normalise import read


@dataclass(frozen=True, slots=True)
class Judged:
    """What the checks say about one text, and how long that took beside its vectors."""

    scores: dict[str, float]  # by head
    patterns: frozenset[str]  # kinds that patterns recognised
    num_chars: int
    patterns_s: float
    classifier_s: float

    def value(self, head: str) -> float:
        """Of a head; a pattern's match is certain."""
        return 1.0 if self.patterns and head in ("attack", "indirect") else self.scores.get(head, 0.0)

    def is_flagged(self, head: str, false_positive_rate: float) -> bool:
        """At the shipped threshold."""
        return self.value(head) >= classifier.threshold(head, false_positive_rate)


def judge(texts: Sequence[tuple[str, Segment]], num_threads: int | None) -> list[Judged]:
    """Read, search, embed and score each text."""
    planned = []
    for text, segment in texts:
        began = time.perf_counter()
        reading = read(text)
        patterns = frozenset(each.kind for each in find_injection(reading, segment))
        middle = time.perf_counter()
        plan = classifier.plan(reading, segment)
        planned.append((plan, patterns, middle - began, time.perf_counter() - middle))
    pieces = [piece for plan, *_ in planned for piece in plan.texts]
    vectors = embed_all(pieces, num_threads, is_int8=True)
    found = []
    for (text, _), (plan, patterns, patterns_s, planning_s) in zip(texts, planned, strict=True):
        stacked = (
            np.stack([vectors[piece] for piece in plan.texts]) if plan.pieces else np.zeros((0, 384), "f")
        )
        began = time.perf_counter()
        scores = {head: each.value for head, each in classifier.score(plan, stacked).items()}
        took_s = planning_s + time.perf_counter() - began
        found.append(Judged(scores, patterns, len(text), patterns_s, took_s))
    return found

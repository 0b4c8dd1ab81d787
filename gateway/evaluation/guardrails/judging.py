"""Runs the text checks over many texts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.evaluation.guardrails.inputs import GuardrailsPlan
from gateway.evaluation.vectors import embed_all
from guardrails.checks import classifier
from guardrails.checks.injection import find_injection
from guardrails.findings import Segment
from guardrails.text.normalise import read

_NONE = np.zeros((0, 384), np.float32)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the checks say about one text, and how long that took beside its vectors."""

    scores: dict[str, float]  # by head
    patterns: frozenset[str]  # kinds that patterns recognised
    language: str  # of most windows
    is_unreadable: bool  # in part, for attacks or harm
    num_chars: int
    patterns_s: float
    classifier_s: float

    def value(self, head: str) -> float:
        """The score of a head; above 1 where a pattern matched."""
        is_certain = bool(self.patterns) and head in ("attack", "indirect")
        return self.scores.get(head, 0.0) + is_certain


def limit(head: str, plan: GuardrailsPlan) -> float:
    """The threshold that the weights carry for the plan's share of false positives."""
    return classifier.threshold(head, plan.false_positive_rate, classifier.load_classifier(plan.weights))


def judge(texts: Sequence[tuple[str, Segment]], plan: GuardrailsPlan) -> list[Judged]:
    """Read, search, embed and score each text. Raises WeightsError."""
    plan.encoder.check_weights(plan.weights)
    weights = classifier.load_classifier(plan.weights)
    planned = []
    for text, segment in texts:
        began = time.perf_counter()
        reading = read(text)
        patterns = frozenset(each.kind for each in find_injection(reading, segment))
        middle = time.perf_counter()
        windows = classifier.plan(reading, segment)
        planned.append((windows, patterns, middle - began, time.perf_counter() - middle))
    pieces = [text for windows, *_ in planned for text in windows.embedded(weights)]
    vectors = embed_all(pieces, plan.num_threads, is_int8=True, encoder=plan.encoder)
    found = []
    for (text, _), (windows, patterns, patterns_s, planning_s) in zip(texts, planned, strict=True):
        stacked = windows.stacked(vectors) if windows.pieces else _NONE
        began = time.perf_counter()
        scores = {head: each.value for head, each in classifier.score(windows, stacked, weights).items()}
        took_s = planning_s + time.perf_counter() - began
        spoken = Counter(piece.language for piece in windows.pieces).most_common(1)
        language = spoken[0][0] if spoken else ""
        is_unreadable = any(windows.unreadable(check, weights) for check in weights.languages)
        found.append(Judged(scores, patterns, language, is_unreadable, len(text), patterns_s, took_s))
    return found

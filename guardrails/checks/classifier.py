"""Learned checks of sentence windows: attacks on the prompt, harmful topics, toxicity by category.

`plan` says which texts to embed, `score` judges them with their vectors; the worst window counts. A window's
logit is the sum of a small network over its sentence vector and a linear model over hashed n-grams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from backend.heads.weights import Tensor, read_weights
from guardrails.checks import ngrams
from guardrails.findings import Finding, Segment
from guardrails.normalise import Reading, View
from guardrails.windows import windows

Array = NDArray[np.float32]

WEIGHTS = Path(__file__).parent.parent / "weights" / "classifier.safetensors"
KINDS = ("override", "jailbreak", "extraction")
"""Of attacks by users; the head `attack` judges them together."""
CATEGORIES = ("hate", "harassment", "self_harm", "sexual", "violence", "illicit")
HEADS = ("attack", *KINDS, "indirect", "harmful_topic", "toxicity", *CATEGORIES)
FALSE_POSITIVE_RATES = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""On ordinary texts, for which thresholds ship."""
_GENERAL = ("toxicity", "harmful_topic")
"""Heads that judge all categories together."""
_CHECK_OF = {"attack": "injection", "indirect": "injection", "harmful_topic": "harmful_topic"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A window of a view."""

    view: View
    start: int
    end: int

    @property
    def text(self) -> str:
        """The sentence."""
        return self.view.text[self.start : self.end]


@dataclass(frozen=True, slots=True)
class Plan:
    """What of one text is to be judged."""

    segment: Segment
    pieces: tuple[Piece, ...]

    @property
    def texts(self) -> list[str]:
        """To be embedded; `score` expects a vector of each."""
        return [piece.text for piece in self.pieces]


@dataclass(frozen=True, slots=True)
class Score:
    """What a head says about a text."""

    value: float  # 0 to 1
    start: int = 0  # of the worst window, in the text as written
    end: int = 0
    view: str = ""


def plan(reading: Reading, segment: Segment = "user") -> Plan:
    """The distinct windows of all views."""
    pieces: dict[str, Piece] = {}
    for view in reading.last_views:
        for start, end in windows(view.text):
            piece = Piece(view, start, end)
            pieces.setdefault(piece.text, piece)
    return Plan(segment, tuple(pieces.values()))


def score(plan: Plan, vectors: Array, classifier: Classifier | None = None) -> dict[str, Score]:
    """The worst window's score by each head that applies; `vectors` [N, 384], of unit length.

    `classifier`: other weights than the shipped ones.
    """
    names = [name for name in HEADS if _applies(name, plan.segment)]
    if not plan.pieces:
        return {name: Score(0.0) for name in names}
    logits = (classifier or load_classifier()).logits(plan.texts, vectors)
    found = {}
    for name in names:
        column = logits[:, HEADS.index(name)]
        piece = plan.pieces[int(column.argmax())]
        start, end = piece.view.origin(piece.start, piece.end)
        found[name] = Score(_probability(float(column.max())), start, end, piece.view.name)
    return found


def findings(
    scores: Mapping[str, Score], false_positive_rate: float = 0.01, classifier: Classifier | None = None
) -> list[Finding]:
    """What is at or above the threshold for a share of ordinary texts flagged by a head.

    An attack by a user is named after its most probable kind. `classifier`: that gave the scores.
    """
    found = []
    for name, each in scores.items():
        if name in KINDS or each.value < threshold(name, false_positive_rate, classifier):
            continue
        kind = max(KINDS, key=lambda kind: scores[kind].value) if name == "attack" else name
        check = _CHECK_OF.get(name, "toxicity")
        reason = f"classifier in {each.view}"
        found.append(Finding(check, kind, each.value, each.start, each.end, reason))
    return found


def judge_categories(
    scores: Mapping[str, Score], false_positive_rate: float = 0.01, classifier: Classifier | None = None
) -> dict[str, tuple[float, bool]]:
    """(score, whether it is flagged) of each category.

    A text that is harmful as a whole and reaches no category's threshold belongs to its likeliest category.
    """
    limits = {name: threshold(name, false_positive_rate, classifier) for name in CATEGORIES}
    found = {name: (scores[name].value, scores[name].value >= limits[name]) for name in CATEGORIES}
    general = [
        scores[name].value
        for name in _GENERAL
        if scores[name].value >= threshold(name, false_positive_rate, classifier)
    ]
    if general and not any(flagged for _, flagged in found.values()):
        likeliest = max(CATEGORIES, key=lambda name: found[name][0] / limits[name])
        found[likeliest] = (max(general), True)
    return found


def threshold(head: str, false_positive_rate: float, classifier: Classifier | None = None) -> float:
    """Of a head for a share of ordinary texts, or for the next lower share that was measured."""
    rates = [rate for rate in FALSE_POSITIVE_RATES if rate <= false_positive_rate]
    number = FALSE_POSITIVE_RATES.index(max(rates)) if rates else len(FALSE_POSITIVE_RATES) - 1
    return float((classifier or load_classifier()).thresholds[HEADS.index(head), number])


def _applies(head: str, segment: Segment) -> bool:
    """Users attack directly; tools and documents carry attacks."""
    if head == "indirect":
        return segment in ("tool", "document")
    return head not in ("attack", *KINDS) or segment not in ("tool", "document")


def _probability(logit: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(logit, -30, 30))))


@dataclass(frozen=True, slots=True)
class Classifier:
    """The weights."""

    hidden: Array  # [384, D]
    hidden_bias: Array  # [D]
    out: Array  # [D, H]
    bias: Array  # [H]
    ngrams: Array  # [B, H]
    thresholds: Array  # [H, len(FALSE_POSITIVE_RATES)], probabilities

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """From the tensors of a weights file."""
        table = tensors["ngrams"].astype(np.float32) * tensors["ngrams.scale"].astype(np.float32)
        names = ("hidden", "hidden_bias", "out", "bias")
        return cls(
            **{name: tensors[name].astype(np.float32) for name in names},
            ngrams=table,
            thresholds=tensors["thresholds"],
        )

    def logits(self, texts: list[str], vectors: Array) -> Array:
        """[N, H]."""
        hidden = np.maximum(vectors.astype(np.float32) @ self.hidden + self.hidden_bias, 0)
        return np.asarray(hidden @ self.out + self.bias + ngrams.sums(texts, self.ngrams), np.float32)


@cache
def load_classifier(path: Path = WEIGHTS, written: tuple[int, int] = (0, 0)) -> Classifier:
    """Weights, the shipped ones by default, loaded once per process. Raises WeightsError.

    `written`: `stamp(path)` of a file that may change.
    """
    return Classifier.of(read_weights(path)[0])

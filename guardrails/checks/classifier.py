"""Learned checks of sentence windows: attacks on the prompt, harmful topics, toxicity by category.

`plan` says which texts to embed, `score` judges them with their vectors; the worst window counts. A window's
logit is the sum of a small network over its sentence vector and a linear model over hashed n-grams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.weights import Tensor, read_card, read_weights
from backend.encoder.identity import identity_on
from guardrails.checks import ngrams
from guardrails.findings import Finding, Segment
from guardrails.languages import ENGLISH, LABELS, languages_of
from guardrails.text.normalise import Reading, View
from guardrails.text.windows import windows

Array = NDArray[np.float32]

WEIGHTS = Path(__file__).parent.parent / "weights" / "classifier.safetensors"
KINDS = ("override", "jailbreak", "extraction")
"""Kinds of attacks by users; the head `attack` judges them together."""
CATEGORIES = ("hate", "harassment", "self_harm", "sexual", "violence", "illicit")
HEADS = ("attack", *KINDS, "indirect", "harmful_topic", "toxicity", *CATEGORIES)
LEAST_SURE = 0.865
"""What a check can hardly judge it must not refuse lightly: in no language that it has not declared."""
FALSE_POSITIVE_RATES = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""On ordinary texts, for which thresholds ship."""
_GENERAL = ("toxicity", "harmful_topic")
"""Heads that judge all categories together."""
Check = Literal["injection", "harm"]
_TOXIC = tuple(HEADS.index(name) for name in ("toxicity", "hate", "harassment"))
"""Toxicity is what one of these finds: each knows cases that the others miss."""
_LOWEST = -30.0
_ENGLISH_ONLY: Mapping[Check, Sequence[str]] = {"injection": (ENGLISH,), "harm": (ENGLISH,)}
_AS_WRITTEN = ("as written", "clean", "look-alikes")
"""Views whose language is the text's; in others, ciphers that were none look like any language."""
_CHECK_OF = {"attack": "injection", "indirect": "injection", "harmful_topic": "harmful_topic"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A window of a view."""

    view: View
    start: int
    end: int
    language: str = ENGLISH

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

    def embedded(self, classifier: Classifier | None = None) -> list[str]:
        """The texts whose vectors count; others are judged by their words."""
        read = (classifier or load_classifier()).embedded
        return [piece.text for piece in self.pieces if piece.language in read]

    def stacked(self, vectors: Mapping[str, Array]) -> Array:
        """[N, D] for `score`, from the vectors of some texts."""
        none = np.zeros(len(next(iter(vectors.values()))) if vectors else 1, np.float32)
        return np.stack([vectors.get(text, none) for text in self.texts])

    def unreadable(self, check: Check, classifier: Classifier | None = None) -> list[str]:
        """The languages in it in which a check misses much or all; what it finds counts all the same."""
        known = (classifier or load_classifier()).languages[check]
        written = {piece.language for piece in self.pieces if piece.view.name in _AS_WRITTEN}
        return [name for name in LABELS if name in written - known]


@dataclass(frozen=True, slots=True)
class Score:
    """What a head says about a text."""

    value: float  # 0 to 1
    start: int = 0  # of the worst window, in the text as written
    end: int = 0
    view: str = ""
    window: str = ""  # as it was judged
    language: str = ENGLISH


def plan(reading: Reading, segment: Segment = "user") -> Plan:
    """The distinct windows of all views."""
    pieces: dict[str, Piece] = {}
    for view in reading.last_views:
        spans = windows(view.text)
        for (start, end), language in zip(spans, languages_of(view.text, spans), strict=True):
            piece = Piece(view, start, end, language)
            pieces.setdefault(piece.text, piece)
    return Plan(segment, tuple(pieces.values()))


def score(plan: Plan, vectors: Array, classifier: Classifier | None = None) -> dict[str, Score]:
    """The worst window's score by each head that applies; `vectors` [N, 384], of unit length.

    `classifier`: other weights than the shipped ones.
    """
    names = [name for name in HEADS if _applies(name, plan.segment)]
    if not plan.pieces:
        return {name: Score(0.0) for name in names}
    classifier = classifier or load_classifier()
    logits = classifier.logits(plan.texts, vectors, [piece.language for piece in plan.pieces])
    found = {}
    for name in names:
        column = logits[:, HEADS.index(name)]
        piece = plan.pieces[int(column.argmax())]
        start, end = piece.view.origin(piece.start, piece.end)
        value = _probability(float(column.max()))
        found[name] = Score(value, start, end, piece.view.name, piece.text, piece.language)
    return found


def findings(
    scores: Mapping[str, Score], false_positive_rate: float = 0.01, classifier: Classifier | None = None
) -> list[Finding]:
    """What is at or above the threshold for a share of ordinary texts flagged.

    An attack by a user is named after its most probable kind. `classifier`: that gave the scores.
    """
    found = []
    for name, each in scores.items():
        if name in KINDS or each.value < least_score(name, each.language, false_positive_rate, classifier):
            continue
        kind = max(KINDS, key=lambda kind: scores[kind].value) if name == "attack" else name
        check = _CHECK_OF.get(name, "toxicity")
        reason = f"classifier in {each.view}"
        found.append(Finding(check, kind, each.value, each.start, each.end, reason))
    return found


def least_score(
    head: str, language: str, false_positive_rate: float, classifier: Classifier | None = None
) -> float:
    """The threshold for a text of a language: at least LEAST_SURE where the check misses most of it."""
    check: Check = "injection" if _CHECK_OF.get(head) == "injection" else "harm"
    is_read = language in (classifier or load_classifier()).languages[check]
    found = threshold(head, false_positive_rate, classifier)
    return found if is_read else max(found, LEAST_SURE)


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
    """A head's threshold for a share of ordinary texts, or for the next lower share that was measured."""
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
    """The weights. Texts that the encoder reads have vectors and n-grams, others n-grams of their own."""

    hidden: Array  # [size of a vector, D]
    hidden_bias: Array  # [D]
    out: Array  # [D, H]
    bias: Array  # [H]
    ngrams: Array  # [B, H]
    other_ngrams: Array  # [B, H], of all other languages
    other_bias: Array  # [H]
    thresholds: Array  # [H, len(FALSE_POSITIVE_RATES)], probabilities
    curves: Mapping[str, Array]  # by other language: the logits that stand for the thresholds
    languages: Mapping[Check, frozenset[str]]  # that each check reads
    embedded: frozenset[str]  # languages that the encoder reads

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, Tensor],
        languages: Mapping[Check, Sequence[str]] = _ENGLISH_ONLY,
        embedded: Sequence[str] = (ENGLISH,),
    ) -> Self:
        """From the tensors of a weights file, and the languages that each check and the encoder read."""
        tables = {
            name: tensors[name].astype(np.float32) * tensors[f"{name}.scale"].astype(np.float32)
            for name in ("ngrams", "other_ngrams")
        }
        dense = ("hidden", "hidden_bias", "out", "bias", "other_bias", "thresholds")
        curves = {name[-2:]: tensor for name, tensor in tensors.items() if name.startswith("curves.")}
        return cls(
            **{name: tensors[name].astype(np.float32) for name in dense},
            **tables,
            curves=curves,
            languages={check: frozenset(names) for check, names in languages.items()},
            embedded=frozenset(embedded),
        )

    def logits(self, texts: Sequence[str], vectors: Array, languages: Sequence[str]) -> Array:
        """[N, H]: as if the texts were English. In languages without a curve nothing is found."""
        found = np.full((len(texts), len(HEADS)), _LOWEST, np.float32)
        is_embedded = np.array([language in self.embedded for language in languages])
        if is_embedded.any():
            own = [text for text, is_own in zip(texts, is_embedded, strict=True) if is_own]
            found[is_embedded] = self.by_vector(own, vectors[is_embedded])
        for language in (self.curves.keys() & set(languages)) - self.embedded:
            rows = [number for number, name in enumerate(languages) if name == language]
            raw = self.other([texts[number] for number in rows])
            found[rows] = self._as_english(raw, self.curves[language])
        toxic = np.stack(
            [_moved(found[:, head], self._limits[head], self._limits[_TOXIC[0]]) for head in _TOXIC]
        )
        found[:, _TOXIC[0]] = toxic.max(0)
        return found

    def by_vector(self, texts: Sequence[str], vectors: Array) -> Array:
        """[N, H], of each head by itself, for texts that the encoder reads."""
        hidden = np.maximum(vectors.astype(np.float32) @ self.hidden + self.hidden_bias, 0)
        return np.asarray(hidden @ self.out + self.bias + ngrams.sums(texts, self.ngrams), np.float32)

    def other(self, texts: Sequence[str]) -> Array:
        """[N, H], on the scale of no language."""
        return np.asarray(ngrams.sums(texts, self.other_ngrams) + self.other_bias, np.float32)

    @property
    def _limits(self) -> Array:
        kept = np.clip(self.thresholds, 1e-6, 1 - 1e-6)
        return np.asarray(np.log(kept / (1 - kept)), np.float32)

    def _as_english(self, raw: Array, curve: Array) -> Array:
        columns = (_moved(raw[:, head], curve[head], self._limits[head]) for head in range(len(HEADS)))
        return np.stack(list(columns), axis=1)


def _moved(values: Array, curve: Array, onto: Array) -> Array:
    """Logits so that each share of ordinary texts that reaches a point of `curve` reaches it of `onto`."""
    steps = np.maximum.accumulate(curve) + 1e-3 * np.arange(len(curve))
    inside = np.interp(values, steps, onto)
    outside = np.minimum(values - steps[0], 0) + np.maximum(values - steps[-1], 0)
    return np.asarray(inside + outside, np.float32)


@cache
def load_classifier(path: Path = WEIGHTS, written: tuple[int, int] = (0, 0)) -> Classifier:
    """Weights, the shipped ones by default, loaded once per process. Raises WeightsError.

    `written`: `stamp(path)` of a file that may change.
    """
    tensors, _ = read_weights(path)
    card = read_card(path)
    embedded = identity_on(card).languages or (ENGLISH,)
    return Classifier.of(tensors, card.get("languages", _ENGLISH_ONLY), embedded)

"""Fits an estimate to outcomes: who answered which prompt right, at what cost."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.weights import Tensor, write_weights
from router.estimate.asking import asking_part
from router.estimate.features import NUM_BUCKETS, NUM_VOCABULARY, surface_features, word_buckets
from router.estimate.perturb import perturb
from router.estimate.ridge import Rows, ridge

Array = NDArray[np.float32]
Matrix = NDArray[np.float64]

RIDGE_WORDS = (16.0, 2.0)
"""What is held out decides: many outcomes of one kind of traffic bear a small penalty."""
RIDGE_SURFACE, RIDGE_VECTOR, RIDGE_OWN = 0.5, 8.0, 9.0
WORDS_GATE = (12.0, 0.6)
"""Slope and middle of the familiarity over the share of known words."""
MIN_SLOPE, MAX_SLOPE = 0.5, 3.0
SURFACE_STEP = 0.1
"""Standard deviations of a surface feature per unit: keeps its ridge penalty in proportion."""


OWN_WEIGHT = 3
"""How often a labelled request of one's own counts beside other data; 1 and 10 were worse."""
MIN_PROMPTS = 2
"""Prompts that have a word, so that it counts as known."""


class OutcomeError(ValueError):
    """A file of outcomes that cannot be used; the message names file, line and remedy."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt and how the models answered it."""

    prompt: str
    scores: Mapping[str, float]  # model → 0 to 1
    cost_usd: Mapping[str, float]
    task: str = ""
    source: str = ""
    has_tools: bool = False
    kept: Mapping[str, float] = field(default_factory=dict)  # model → 1: a cascade keeps its answer
    answer_tokens: Mapping[str, float] = field(default_factory=dict)


def read_outcomes(paths: Iterable[Path]) -> list[Outcome]:
    """Read JSON lines, also gzipped. Raises OutcomeError."""
    return [outcome for path in paths for outcome in _read(path)]


def _read(path: Path) -> Iterator[Outcome]:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = data.decode("utf-8").split("\n")  # not splitlines: texts contain U+2028
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise OutcomeError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield Outcome(
                asking_part(str(row["prompt"])),
                _numbers(row["scores"] if "needs_reasoning" not in row else _reasoning(row)),
                _numbers(row.get("cost_usd") or {}),
                str(row.get("task", "")),
                str(row.get("source", "")),
                bool(row.get("has_tools")),
                _numbers(row.get("kept") or {}),
                _numbers(row.get("answer_tokens") or {}),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OutcomeError(
                f'{path}:{number}: not an outcome ({error!r}); each line is {{"prompt": TEXT, '
                '"scores": {MODEL: 0..1}, "cost_usd": {MODEL: USD}} or has "needs_reasoning"'
            ) from None


def _reasoning(row: Mapping[str, Any]) -> dict[str, float]:
    """A label as the scores of two models, of which one can reason."""
    return {"plain": float(not row["needs_reasoning"]), "reasoning": 1.0}


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    found = {str(name): float(value) for name, value in values.items() if value is not None}
    if not all(map(math.isfinite, found.values())):
        raise ValueError("a number is not finite")
    return found


def order_by_score(outcomes: Sequence[Outcome]) -> list[str]:
    """The models by their mean score, lowest first."""
    found: dict[str, list[float]] = {}
    for outcome in outcomes:
        for model, score in outcome.scores.items():
            found.setdefault(model, []).append(score)
    return sorted(found, key=lambda model: (np.mean(found[model]), model))


@dataclass(frozen=True, slots=True)
class Features:
    """What is read of N prompts; the first axis of each array is theirs."""

    surface: Array  # [2, N, D]: of the prompts as they are, then mistyped or with words of politeness
    buckets: NDArray[np.object_]  # [2, N]: arrays of word buckets
    vocabulary: NDArray[np.object_]  # [N]
    vectors: Array | None  # [N, 384]; a row of zeros where there is none

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], vectors: Mapping[str, Array] | None) -> Features:
        """`vectors` by prompt; None: only words and surface features."""
        draw = Random(0)
        texts = [
            [asking_part(each.prompt) for each in outcomes],
            [asking_part(perturb(draw, each.prompt)) for each in outcomes],
        ]
        surface = [
            [
                surface_features(text, has_tools=each.has_tools)
                for text, each in zip(kind, outcomes, strict=True)
            ]
            for kind in texts
        ]
        words = [[word_buckets(text) for text in kind] for kind in texts]
        buckets = np.empty((2, len(outcomes)), object)
        for kind, found in enumerate(words):
            buckets[kind, :] = [each for each, _ in found]
        vocabulary = np.empty(len(outcomes), object)
        vocabulary[:] = [known for _, known in words[0]]
        if vectors is None:
            return cls(np.array(surface), buckets, vocabulary, None)
        zero = np.zeros(len(next(iter(vectors.values()))), np.float32)
        rows = [vectors.get(each.prompt, zero) for each in outcomes]
        return cls(np.array(surface), buckets, vocabulary, np.stack(rows))

    def some(self, numbers: NDArray[np.int64]) -> Features:
        """The features of the prompts with these numbers."""
        vectors = None if self.vectors is None else self.vectors[numbers]
        return Features(self.surface[:, numbers], self.buckets[:, numbers], self.vocabulary[numbers], vectors)


def fit(
    features: Features,
    gains: Array,
    kept: Array | None = None,
    answer_tokens: Array | None = None,
    own: NDArray[np.int64] | None = None,
) -> dict[str, Tensor]:
    """An estimate of the gains [N], from words and, where the features have vectors, from meaning as well.

    `kept` [N]: whether a cascade keeps the weak model's answer. `answer_tokens` [N, 2]: of the weak model and
    the strong one. `own`: numbers of labelled requests of the traffic to come.
    """
    found = _fit(features, gains)
    if own is not None and features.vectors is not None and features.vectors[own].any():
        _add_own(found, features.vectors[own], gains[own])
    if kept is not None:
        words = _fit(replace(features, vectors=None), kept)
        found |= {f"stays.{name}": words[name] for name in ("surface.weight", "words.weight", "scalars")}
    if answer_tokens is not None:
        found["answer_tokens"] = answer_tokens.mean(0).astype(np.float32)
    return found


def _add_own(found: dict[str, Tensor], vectors: Array, gains: Array) -> None:
    """Average words and vectors of all data with what the vectors of one's own labels alone tell."""
    has = vectors.any(1)
    weights, bias = ridge(Rows(vectors[has]), gains[has], np.full(vectors.shape[1], RIDGE_OWN))
    base = found["scalars"][1]
    for name in ("surface.weight", "words.weight"):
        found[name] = (2 / 3 * found[name]).astype(found[name].dtype)
    found["scalars"][0] = base + 2 / 3 * (found["scalars"][0] - base)
    vector = 2 / 3 * (found["vector.weight"] + np.append(weights, bias))
    vector[-1] -= base / 3  # the mean with two thirds of the words is that of all three
    found["vector.weight"] = vector.astype(np.float32)


def _fit(features: Features, targets: Array) -> dict[str, Tensor]:
    """Predictions are shrunk by the ridge penalty; what is held out here chooses it and tells by how much."""
    order = np.random.default_rng(0).permutation(len(targets))
    held_out, rest = order[: len(order) // 5], order[len(order) // 5 :]
    trials = []
    for penalty in RIDGE_WORDS:
        predicted = _Parts.fitted(features.some(rest), targets[rest], penalty).predict(
            features.some(held_out)
        )
        spread = float(predicted.var())
        common = float(np.cov(predicted, targets[held_out], bias=True)[0, 1])
        slope = min(MAX_SLOPE, max(MIN_SLOPE, common / spread if spread > 0 else 1.0))
        trials.append(
            (slope * (slope * spread - 2 * common), penalty, slope)
        )  # squared error, but for a constant
    _, penalty, slope = min(trials)
    return _Parts.fitted(features, targets, penalty).tensors(float(targets.mean()), slope)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The weights of both linear models."""

    mean: Array  # of the surface features
    scale: Array
    words: Matrix  # of the surface features, then of the buckets
    bias: float
    known: NDArray[np.uint8]
    vector: Matrix | None
    vector_bias: float

    @classmethod
    def fitted(cls, features: Features, gains: Array, ridge_words: float) -> _Parts:
        surface = features.surface.reshape(-1, features.surface.shape[-1])
        mean, scale = surface.mean(0), SURFACE_STEP / (surface.std(0) + 1e-3)
        rows = Rows((surface - mean) * scale, features.buckets.ravel().tolist(), NUM_BUCKETS)
        penalty = np.repeat([RIDGE_SURFACE, ridge_words], [surface.shape[1], NUM_BUCKETS])
        words, bias = ridge(rows, np.concatenate([gains, gains]), penalty)
        counts = np.bincount(np.concatenate(features.vocabulary), minlength=NUM_VOCABULARY)
        known = (counts >= MIN_PROMPTS).astype(np.uint8)
        vector, vector_bias = None, 0.0
        if features.vectors is not None:
            has = features.vectors.any(1)
            penalty = np.full(features.vectors.shape[1], RIDGE_VECTOR)
            vector, vector_bias = ridge(Rows(features.vectors[has]), gains[has], penalty)
        return cls(mean, scale, words, bias, known, vector, vector_bias)

    def predict(self, features: Features) -> Matrix:
        rows = Rows((features.surface[0] - self.mean) * self.scale, features.buckets[0].tolist(), NUM_BUCKETS)
        found = rows.times(self.words) + self.bias
        if self.vector is None or features.vectors is None:
            return found
        return (found + features.vectors @ self.vector + self.vector_bias) / 2

    def tensors(self, base: float, slope: float) -> dict[str, Tensor]:
        """Tensors as `Estimate` reads them. Predictions become base + slope * (prediction - base)."""
        split, words = len(self.mean), self.words * slope
        found: dict[str, Tensor] = {
            "surface.mean": self.mean.astype(np.float32),
            "surface.scale": self.scale.astype(np.float32),
            "surface.weight": words[:split].astype(np.float32),
            "words.weight": words[split:].astype(np.float16),
            "words.known": self.known,
            "scalars": np.array([base + slope * (self.bias - base), base, *WORDS_GATE], np.float32),
        }
        if self.vector is not None:
            bias = base + slope * (self.vector_bias - base)
            found["vector.weight"] = np.append(self.vector * slope, bias).astype(np.float32)
        return found


def gains_of(outcomes: Sequence[Outcome], weak: str, strong: str) -> Array:
    """(N,): the strong model's score less the weak one's. Raises OutcomeError where one is missing."""
    missing = sum(weak not in each.scores or strong not in each.scores for each in outcomes)
    if missing:
        raise OutcomeError(f"{missing} of {len(outcomes)} outcomes lack a score of {weak!r} or {strong!r}")
    return np.array([each.scores[strong] - each.scores[weak] for each in outcomes], np.float32)


def save(path: Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write the weights and their card."""
    write_weights(path, tensors, card)

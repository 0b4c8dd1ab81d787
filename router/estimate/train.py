"""Fits an estimate to outcomes: who answered which prompt right, at what cost."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.heads.weights import Tensor, write_weights
from router.estimate.features import NUM_BUCKETS, NUM_VOCABULARY, surface_features, word_buckets
from router.estimate.perturb import perturb

Array = NDArray[np.float32]
Matrix = NDArray[np.float64]

RIDGE_WORDS, RIDGE_SURFACE, RIDGE_CLUSTERS = 1.0, 0.03, 0.5
NUM_CLUSTERS, CLUSTER_TEMPERATURE = 192, 0.15
WORDS_GATE = (12.0, 0.6)
"""Slope and middle of the familiarity over the share of known words."""
SURFACE_STEP = 0.1
"""Standard deviations of a surface feature per unit: keeps its ridge penalty in proportion."""


MIN_PROMPTS = 2
"""That have a word, so that it counts as known."""


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


def read_outcomes(paths: Iterable[Path]) -> list[Outcome]:
    """Read JSON lines, also gzipped. Raises OutcomeError."""
    return [outcome for path in paths for outcome in _read(path)]


def _read(path: Path) -> Iterator[Outcome]:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = data.decode("utf-8").split("\n")  # not splitlines: texts contain U+2028
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise OutcomeError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield Outcome(
                str(row["prompt"]),
                _numbers(row["scores"] if "needs_reasoning" not in row else _reasoning(row)),
                _numbers(row.get("cost_usd") or {}),
                str(row.get("task", "")),
                str(row.get("source", "")),
                bool(row.get("has_tools")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutcomeError(
                f'{path}:{number}: not an outcome ({error!r}); each line is {{"prompt": TEXT, '
                '"scores": {MODEL: 0..1}, "cost_usd": {MODEL: USD}} or has "needs_reasoning"'
            ) from None


def _reasoning(row: Mapping[str, Any]) -> dict[str, float]:
    """A label as the scores of two models, of which one can reason."""
    return {"plain": float(not row["needs_reasoning"]), "reasoning": 1.0}


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items() if value is not None}


def order_by_score(outcomes: Sequence[Outcome]) -> list[str]:
    """The models by their mean score, lowest first."""
    found: dict[str, list[float]] = {}
    for outcome in outcomes:
        for model, score in outcome.scores.items():
            found.setdefault(model, []).append(score)
    return sorted(found, key=lambda model: (np.mean(found[model]), model))


def fit_words(outcomes: Sequence[Outcome], gains: Array) -> dict[str, Tensor]:
    """Ridge regression of the gains on surface features and hashed words.

    Each prompt is there twice: as it is, and mistyped or with words of politeness.
    """
    draw = Random(0)
    known = np.zeros(NUM_VOCABULARY, np.uint16)
    for outcome in outcomes:
        known[word_buckets(outcome.prompt)[1]] += 1
    outcomes = [*outcomes, *(replace(each, prompt=perturb(draw, each.prompt)) for each in outcomes)]
    gains = np.concatenate([gains, gains])
    words = np.zeros((len(outcomes), NUM_BUCKETS), np.float32)
    for row, outcome in enumerate(outcomes):
        buckets, _ = word_buckets(outcome.prompt)
        words[row, buckets] = len(buckets) ** -0.5 if len(buckets) else 0.0
    surface = np.stack([surface_features(each.prompt, has_tools=each.has_tools) for each in outcomes])
    mean, scale = surface.mean(0), SURFACE_STEP / (surface.std(0) + 1e-3)
    inputs = np.concatenate([(surface - mean) * scale, words], axis=1)
    split = surface.shape[1]
    penalty = np.concatenate([np.full(split, RIDGE_SURFACE), np.full(NUM_BUCKETS, RIDGE_WORDS)])
    weights, bias = _ridge(inputs, gains, penalty)
    return {
        "surface.mean": mean.astype(np.float32),
        "surface.scale": scale.astype(np.float32),
        "surface.weight": weights[:split].astype(np.float32),
        "words.weight": weights[split:].astype(np.float16),
        "words.known": (known >= MIN_PROMPTS).astype(np.uint8),
        "scalars": np.array([bias, gains.mean(), *WORDS_GATE], np.float32),
    }


def fit_clusters(vectors: Array, gains: Array) -> dict[str, Tensor]:
    """Ridge regression of the gains on the soft assignment of `vectors` [N, D] to their clusters."""
    centres = _centres(vectors)
    cosines = vectors @ centres.T
    assignment = np.exp((cosines - cosines.max(1, keepdims=True)) / CLUSTER_TEMPERATURE)
    assignment /= assignment.sum(1, keepdims=True)
    weights, bias = _ridge(assignment, gains, np.full(len(centres), RIDGE_CLUSTERS))
    near = np.quantile(cosines.max(1), (0.02, 0.2))  # familiar: as near as most training prompts are
    slope, middle = 6.0 / float(near[1] - near[0] + 1e-6), float(near.mean())
    return {
        "clusters.centres": centres.astype(np.float16),
        "clusters.weight": weights.astype(np.float32),
        "clusters.temperature": np.array([CLUSTER_TEMPERATURE], np.float32),
        "scalars": np.array([bias, gains.mean(), slope, middle], np.float32),
    }


def _ridge(inputs: Array, targets: Array, penalty: Matrix) -> tuple[Matrix, float]:
    """Weights and bias that minimise the squared error plus the penalty per column."""
    middle, base = inputs.mean(0), float(targets.mean())
    centred = inputs - middle
    if len(centred) < centred.shape[1]:  # the dual is smaller
        scaled = centred / np.sqrt(penalty).astype(np.float32)
        gram = (scaled @ scaled.T).astype(np.float64)
        gram[np.diag_indices_from(gram)] += 1.0
        weights = (scaled.T @ np.linalg.solve(gram, targets - base)) / np.sqrt(penalty)
    else:
        gram = (centred.T @ centred).astype(np.float64)
        gram[np.diag_indices_from(gram)] += penalty
        weights = np.linalg.solve(gram, centred.T @ (targets - base))
    return weights, base - float(middle @ weights)


def _centres(vectors: Array) -> Array:
    """Centres of the clusters of the training vectors (spherical k-means), from which no text can be read."""
    draw = np.random.default_rng(0)
    count = min(NUM_CLUSTERS, len(vectors) // 8 + 1)
    centres = vectors[draw.choice(len(vectors), count, replace=False)]
    for _ in range(10):
        nearest = (vectors @ centres.T).argmax(1)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, vectors)
        centres = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-6)
    return centres


def gains_of(outcomes: Sequence[Outcome], weak: str, strong: str) -> Array:
    """(N,): the strong model's score less the weak one's. Raises OutcomeError where one is missing."""
    missing = sum(weak not in each.scores or strong not in each.scores for each in outcomes)
    if missing:
        raise OutcomeError(f"{missing} of {len(outcomes)} outcomes lack a score of {weak!r} or {strong!r}")
    return np.array([each.scores[strong] - each.scores[weak] for each in outcomes], np.float32)


def save(path: Path, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write the weights and their card."""
    write_weights(path, tensors, card)

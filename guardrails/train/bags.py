"""Texts as bags of windows, with their vectors and n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.encoder.chosen import SHIPPED, ChosenEncoder
from guardrails.checks.classifier import HEADS, Classifier, plan
from guardrails.checks.ngrams import grams
from guardrails.normalise import read
from guardrails.train.rows import Row
from guardrails.train.vectors import vectors_of

Array = NDArray[np.float32]
Numbers = NDArray[np.int64]
MAX_WINDOWS = 80
"""Of a training text."""
CHUNK = 2000


@dataclass(frozen=True, slots=True)
class Bags:
    """`texts`, `vectors` and n-grams of the distinct windows, and which windows each row has."""

    texts: Sequence[str]
    vectors: Array  # [W, 384]
    buckets: Numbers
    offsets: Numbers  # [W + 1], into buckets
    windows: Sequence[Numbers]  # of each row
    labels: Array  # [N, H]; -1: unknown
    weights: Array  # [N]

    def of(self, rows: Sequence[int]) -> Bags:
        """Those of some rows."""
        windows = [self.windows[row] for row in rows]
        index = list(rows)
        labels, weights = self.labels[index], self.weights[index]
        return Bags(self.texts, self.vectors, self.buckets, self.offsets, windows, labels, weights)

    def logits(self, classifier: Classifier) -> Array:
        """[N, H]: of the worst window of each row."""
        used = np.unique(np.concatenate(self.windows))
        parts = []
        for start in range(0, len(used), CHUNK):
            chunk = used[start : start + CHUNK]
            parts.append(classifier.logits([self.texts[i] for i in chunk], self.vectors[chunk]))
        found, place = np.concatenate(parts), np.searchsorted
        return np.stack([found[place(used, windows)].max(0) for windows in self.windows])


def make_bags(rows: Sequence[Row], folder: Path, encoder: ChosenEncoder = SHIPPED) -> Bags:
    """Cut, embed and hash the rows; vectors are kept in `folder`."""
    numbers: dict[str, int] = {}
    windows = []
    for row in rows:
        pieces = plan(read(row.text), row.segment).texts[:MAX_WINDOWS] or ["."]
        windows.append(np.array([numbers.setdefault(piece, len(numbers)) for piece in pieces]))
    texts = list(numbers)
    vectors, places = vectors_of(texts, encoder.folder(folder) or folder, encoder.embed)
    buckets, offsets = _buckets(texts)
    labels = np.full((len(rows), len(HEADS)), -1, np.float32)
    for number, row in enumerate(rows):
        for head, label in row.labels.items():
            labels[number, HEADS.index(head)] = label
    weights = np.array([row.weight for row in rows], np.float32)
    return Bags(texts, vectors[places], buckets, offsets, windows, labels, weights)


def _buckets(texts: Sequence[str]) -> tuple[Numbers, Numbers]:
    """(buckets of all texts, offsets [N + 1])."""
    parts, lengths = [], []
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        found = list(grams(chunk))
        owners = np.concatenate([owner for _, owner in found])
        order = np.argsort(owners, kind="stable")
        parts.append(np.concatenate([buckets for buckets, _ in found])[order])
        lengths.append(np.bincount(owners, minlength=len(chunk)))
    return np.concatenate(parts), np.concatenate([[0], np.cumsum(np.concatenate(lengths))])

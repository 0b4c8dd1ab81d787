"""Texts as bags of windows, with their vectors and n-grams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.encoder.chosen import SHIPPED, ChosenEncoder
from guardrails.checks.classifier import HEADS, plan
from guardrails.checks.ngrams import grams
from guardrails.text.normalise import read
from guardrails.train.rows import Row
from guardrails.train.vectors import vectors_of

Array = NDArray[np.float32]
Numbers = NDArray[np.int64]
MAX_WINDOWS = 80
"""Windows of a training text."""
CHUNK = 2000


@dataclass(frozen=True, slots=True)
class Bags:
    """`texts`, `vectors` and n-grams of the distinct windows, and which windows each row has."""

    texts: Sequence[str]
    languages: Sequence[str]
    is_embedded: NDArray[np.bool_]  # [W]: in a language that the encoder reads
    vectors: Array  # [W, size], zero where it does not
    buckets: Numbers
    offsets: Numbers  # [W + 1], into buckets
    windows: Sequence[Numbers]  # of each row
    labels: Array  # [N, H]; -1: unknown
    weights: Array  # [N]

    def of(self, rows: Sequence[int]) -> Bags:
        """The bags of some rows."""
        windows = [self.windows[row] for row in rows]
        index = list(rows)
        labels, weights = self.labels[index], self.weights[index]
        return replace(self, windows=windows, labels=labels, weights=weights)

    def embedded(self, *, wanted: bool) -> Bags:
        """The rows with the windows alone that the encoder reads, or that it does not.

        What makes a text harmful may be in its other windows: where these are more, that is unknown.
        """
        windows = [row[self.is_embedded[row] == wanted] for row in self.windows]
        is_rest = np.array(
            [2 * len(kept) <= len(row) for kept, row in zip(windows, self.windows, strict=True)]
        )
        labels = np.where(is_rest[:, None] & (self.labels > 0), -1, self.labels)
        return replace(self, windows=windows, labels=np.asarray(labels, np.float32))

    def logits(self, judge: Callable[[list[str], Array], Array]) -> Array:
        """[N, H]: of the worst window of each row, none of which may be empty."""
        used = np.unique(np.concatenate(self.windows))
        parts = []
        for start in range(0, len(used), CHUNK):
            chunk = used[start : start + CHUNK]
            parts.append(judge([self.texts[i] for i in chunk], self.vectors[chunk]))
        found, place = np.concatenate(parts), np.searchsorted
        return np.stack([found[place(used, windows)].max(0) for windows in self.windows])


def make_bags(rows: Sequence[Row], folder: Path, encoder: ChosenEncoder = SHIPPED) -> Bags:
    """Cut, embed and hash the rows; vectors are kept in `folder`."""
    numbers: dict[str, int] = {}
    languages: list[str] = []
    windows = []
    for row in rows:
        pieces = plan(read(row.text), row.segment).pieces[:MAX_WINDOWS]
        for piece in pieces:
            if numbers.setdefault(piece.text, len(numbers)) == len(languages):
                languages.append(piece.language)
        windows.append(np.array([numbers[piece.text] for piece in pieces], np.int64))
    texts = list(numbers)
    is_embedded = np.array([language in encoder.languages for language in languages])
    read_texts = [text for text, is_read in zip(texts, is_embedded, strict=True) if is_read]
    found, places = vectors_of(read_texts, encoder.folder(folder) or folder, encoder.embed)
    vectors = np.zeros((len(texts), found.shape[1]), found.dtype)
    vectors[is_embedded] = found[places]
    buckets, offsets = _buckets(texts)
    labels = np.full((len(rows), len(HEADS)), -1, np.float32)
    for number, row in enumerate(rows):
        for head, label in row.labels.items():
            labels[number, HEADS.index(head)] = label
    weights = np.array([row.weight for row in rows], np.float32)
    return Bags(texts, languages, is_embedded, vectors, buckets, offsets, windows, labels, weights)


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

"""Words → vectors and rarity, from the word pieces of all-MiniLM-L6-v2, projected and quantised."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

MAX_WORD_CHARS = 40


class Vocabulary:
    """Rows of a table by word; a word that has none is the mean of its longest pieces."""

    def __init__(self, pieces: Sequence[str], table: Array, idf: Array) -> None:
        self._rows = {piece: row for row, piece in enumerate(pieces)}
        self._table = table
        self._idf = idf
        self._idf_unknown = float(idf.max(initial=0.0))
        self._split = lru_cache(maxsize=8192)(self._split_uncached)

    def vectors(self, words: Sequence[str]) -> Array:
        """One row per word [n, d]; a single zero row for no words."""
        rows = [self._rows.get(word, -1) for word in words]
        vectors = self._table[rows or [-1]]
        for i, row in enumerate(rows):
            if row < 0:
                vectors[i] = self._table[list(self._split(words[i]))].mean(0)
        return vectors if words else np.zeros_like(vectors)

    def rows(self, word: str) -> tuple[int, ...]:
        """The row of a word or of its pieces."""
        row = self._rows.get(word)
        return (row,) if row is not None else self._split(word)

    def idf(self, word: str) -> float:
        """Rarity of a word in questions, about 0 to 1."""
        row = self._rows.get(word)
        return float(self._idf[row]) if row is not None else self._idf_unknown

    def _split_uncached(self, word: str) -> tuple[int, ...]:
        """Greedy longest match, as WordPiece; characters without a piece are passed over."""
        found: list[int] = []
        start, word = 0, word[:MAX_WORD_CHARS]
        while start < len(word):
            for end in range(len(word), start, -1):
                row = self._rows.get(("##" if start else "") + word[start:end])
                if row is not None:
                    found.append(row)
                    start = end
                    break
            else:
                start += 1
        return tuple(found) or (self._rows["[UNK]"],)

"""The pair network in numpy: words aligned by attention, compared, and judged with the sentence vectors.

The decomposable attention model (Parikh et al. 2016) over word vectors in context, with the sentence
vectors and the pair features beside it. model.py has the same network in torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

MAX_WORDS = 48
"""Words of a sentence that are aligned."""


class PairNetwork:
    """Logits of "one answer serves both" from word vectors, sentence vectors and pair features."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._weights = {name: np.asarray(value, np.float32) for name, value in weights.items()}

    def contextual(self, words: Array, mask: Array) -> tuple[Array, Array]:
        """Word vectors [k, n, d] → vectors with context [k, n, 2d], attention keys of length 1 [k, n, d]."""
        w = self._weights
        padded = np.zeros((words.shape[0], words.shape[1] + 2, words.shape[2]), np.float32)
        padded[:, 1:-1] = words
        windows = np.concatenate([padded[:, :-2], words, padded[:, 2:]], axis=2)
        inner = np.maximum(windows @ w["context.weight"].T + w["context.bias"], 0) * mask[:, :, None]
        both = np.concatenate([words, inner], axis=2)
        keys = both @ w["key.weight"].T
        return both, keys / (np.sqrt((keys * keys).sum(2, keepdims=True)) + 1e-6)

    def logits(self, asked: Array, known: Array, mask: Array, vectors: Array, features: Array) -> Array:
        """Judge one sentence against k others.

        asked [1, n, d], known [k, m, d] with mask [k, m]; vectors [k, 2 × 384]: |u - v| and u * v;
        features [k, f]. Returns [k].
        """
        w = self._weights
        one, one_keys = self.contextual(asked, np.ones(asked.shape[:2], np.float32))
        other, other_keys = self.contextual(known, mask)
        scores = np.exp((one_keys @ other_keys.transpose(0, 2, 1)) * w["sharpness"]) * mask[:, None, :]
        to_known = scores / scores.sum(2, keepdims=True)
        to_asked = (scores / (scores.sum(1, keepdims=True) + 1e-9)).transpose(0, 2, 1)
        sides = [
            self._compare(np.broadcast_to(one, (len(known), *one.shape[1:])), to_known @ other, None),
            self._compare(other, to_asked @ one, mask),
        ]
        meaning = np.maximum(vectors @ w["vectors.weight"].T + w["vectors.bias"], 0)
        scaled = (features - w["features.mean"]) * w["features.scale"]
        joined = np.concatenate([sides[0] + sides[1], np.abs(sides[0] - sides[1]), meaning, scaled], axis=1)
        hidden = np.maximum(joined @ w["judge.weight"].T + w["judge.bias"], 0)
        result: Array = hidden @ w["output.weight"][0] + scaled @ w["skip.weight"][0] + w["output.bias"]
        return result

    def _compare(self, words: Array, partners: Array, mask: Array | None) -> Array:
        """Each word with its soft partner [k, n, 2d] → mean and maximum over the words [k, 2h]."""
        w = self._weights
        half = words.shape[2] // 2
        joined = np.concatenate([words[:, :, :half], np.abs(words - partners), words * partners], axis=2)
        seen = np.maximum(joined @ w["compare.weight"].T + w["compare.bias"], 0)
        if mask is None:
            return np.concatenate([seen.mean(1), seen.max(1)], axis=1)
        seen *= mask[:, :, None]
        return np.concatenate([seen.sum(1) / mask.sum(1, keepdims=True), seen.max(1)], axis=1)


def pad(sentences: Sequence[Array]) -> tuple[Array, Array]:
    """Stack word vectors of several sentences [n_i, d] → ([k, max n, d], mask [k, max n])."""
    longest = max(map(len, sentences))
    words = np.zeros((len(sentences), longest, sentences[0].shape[1]), np.float32)
    mask = np.zeros((len(sentences), longest), np.float32)
    for i, sentence in enumerate(sentences):
        words[i, : len(sentence)] = sentence
        mask[i, : len(sentence)] = 1
    return words, mask

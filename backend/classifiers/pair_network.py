"""The pair network in numpy: words aligned by attention, compared, and judged with the sentence vectors.

The decomposable attention model (Parikh et al. 2016) over word vectors in context, with the sentence
vectors and the pair features beside it. pair_model.py has the same network in torch.
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
        self._weights = {
            name: np.ascontiguousarray(value.T if name.endswith(".weight") else value, np.float32)
            for name, value in weights.items()
        }

    def logits(self, words: Array, mask: Array, vectors: Array, features: Array) -> Array:
        """Judge the first sentence against the k others.

        words [1 + k, n, d] with mask [1 + k, n]; vectors [k, 2 × 384]: |u - v| and u * v; features [k, f].
        Returns [k].
        """
        w = self._weights
        both, keys = self._contextual(words, mask)
        length = int(mask[0].sum())
        one, other, other_mask = both[0, :length], both[1:], mask[1:, :, None]
        num_others, longest, width = other.shape
        scores = np.exp(self._linear(keys[1:], keys[0, :length].T) * w["sharpness"]) * other_mask
        to_asked = self._linear(scores / (scores.sum(2, keepdims=True) + 1e-9), one)
        to_known = (scores / scores.sum(1, keepdims=True)).transpose(0, 2, 1) @ other
        pairs = np.empty((num_others, length + longest, 5 * width // 2), np.float32)
        self._set_pairs(pairs[:, :length], one[None], to_known)
        self._set_pairs(pairs[:, length:], other, to_asked)
        seen = self._linear(pairs, w["compare.weight"]) + w["compare.bias"]
        np.maximum(seen, 0, out=seen)
        asked, known = seen[:, :length], seen[:, length:] * other_mask
        means = asked.sum(1) / length, known.sum(1) / other_mask.sum(1)
        peaks = asked.max(1), known.max(1)
        meaning = np.maximum(vectors @ w["vectors.weight"] + w["vectors.bias"], 0)
        scaled = (features - w["features.mean"]) * w["features.scale"]
        sums, differences = means[0] + means[1], np.abs(means[0] - means[1])
        tops, steps = peaks[0] + peaks[1], np.abs(peaks[0] - peaks[1])
        joined = np.concatenate([sums, tops, differences, steps, meaning, scaled], axis=1)
        hidden = np.maximum(joined @ w["judge.weight"] + w["judge.bias"], 0)
        result: Array = (hidden @ w["output.weight"] + scaled @ w["skip.weight"])[:, 0] + w["output.bias"]
        return result

    def _contextual(self, words: Array, mask: Array) -> tuple[Array, Array]:
        """Word vectors [m, n, d] → vectors with context [m, n, 2d], attention keys of length 1 [m, n, d]."""
        w = self._weights
        size = words.shape[2]
        windows = np.zeros((*words.shape[:2], 3 * size), np.float32)
        windows[:, 1:, :size] = words[:, :-1]
        windows[:, :, size : 2 * size] = words
        windows[:, :-1, 2 * size :] = words[:, 1:]
        both = np.empty((*words.shape[:2], 2 * size), np.float32)
        both[:, :, :size] = words
        inner = self._linear(windows, w["context.weight"]) + w["context.bias"]
        np.multiply(np.maximum(inner, 0, out=inner), mask[:, :, None], out=both[:, :, size:])
        keys = self._linear(both, w["key.weight"])
        keys /= np.sqrt(np.einsum("mnd,mnd->mn", keys, keys))[:, :, None] + 1e-6
        return both, keys

    @staticmethod
    def _linear(values: Array, weight: Array) -> Array:
        """One matrix product over all leading axes, faster than numpy's over three axes."""
        flat: Array = values.reshape(-1, values.shape[-1]) @ weight
        return flat.reshape(*values.shape[:-1], weight.shape[1])

    @staticmethod
    def _set_pairs(target: Array, words: Array, partners: Array) -> None:
        """Each word, how far its soft partner is from it, and their product."""
        width = words.shape[2]
        target[:, :, : width // 2] = words[:, :, : width // 2]
        distance = target[:, :, width // 2 : width // 2 + width]
        np.abs(np.subtract(words, partners, out=distance), out=distance)
        np.multiply(words, partners, out=target[:, :, width // 2 + width :])


def pad(sentences: Sequence[Array]) -> tuple[Array, Array]:
    """Stack word vectors of several sentences [n_i, d] → ([k, max n, d], mask [k, max n])."""
    longest = max(map(len, sentences))
    words = np.zeros((len(sentences), longest, sentences[0].shape[1]), np.float32)
    mask = np.zeros((len(sentences), longest), np.float32)
    for i, sentence in enumerate(sentences):
        words[i, : len(sentence)] = sentence
        mask[i, : len(sentence)] = 1
    return words, mask

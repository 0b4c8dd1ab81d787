"""The vectors of many texts from a loaded encoder, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backend.encoder.model import MAX_INPUT_CHARS, SentenceEncoder
from backend.encoder.network import unit
from backend.errors import RequestError

Array = NDArray[np.float32]
BATCH_TOKENS = 512
_CUT = 0.8
"""The share of a text that is kept when it is too long, again and again until it fits."""


def embed_with(encoder: SentenceEncoder, texts: Sequence[str]) -> Array:
    """[N, D], of unit length; the beginning stands for a text that is too long."""
    ids = [_fitting(encoder, text) for text in texts]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    vectors = np.zeros((len(ids), encoder.dimensions), np.float32)
    start = 0
    while start < len(order):
        rows = order[start : start + max(1, BATCH_TOKENS // len(ids[order[start]]))]
        vectors[rows] = unit(encoder.embed([ids[i] for i in rows]))
        start += len(rows)
    return vectors


def _fitting(encoder: SentenceEncoder, text: str) -> list[int]:
    text = text[:MAX_INPUT_CHARS]
    while True:
        try:
            return encoder.tokenize([text])[0]
        except RequestError:
            if len(text) < 2:  # not its length is wrong
                raise
            text = text[: int(len(text) * _CUT)]

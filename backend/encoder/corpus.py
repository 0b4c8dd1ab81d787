"""The sentence vectors of many texts, for training: of one encoder, kept in a folder between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.encoder.chosen import ChosenEncoder
from backend.encoder.model import MAX_INPUT_CHARS, SentenceEncoder
from backend.encoder.network import unit
from backend.errors import RequestError

Array = NDArray[np.float32]
BATCH_TOKENS = 512
_CUT = 0.8
"""The share of a text that is kept when it is too long, again and again until it fits."""


def embed(texts: Sequence[str]) -> Array:
    """[N, 384], of unit length, from the encoder that ships, in int8 on one thread."""
    return ChosenEncoder().embed(texts)


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


def vectors_by_text(
    texts: Sequence[str], folder: Path | None, embed: Callable[[Sequence[str]], Array] = embed
) -> dict[str, Array]:
    """The vector of each distinct text. `folder`: with vectors of this encoder only."""
    distinct = sorted(set(texts))
    known: dict[str, Array] = {}
    for file in sorted(folder.glob("*.npz")) if folder else []:
        with np.load(file) as stored:
            names = stored["texts"].tobytes().decode().split("\0")
            known |= zip(names, stored["vectors"].astype(np.float32), strict=True)
    missing = [text for text in distinct if text not in known]
    if missing:
        vectors = embed(missing)
        known |= zip(missing, vectors, strict=True)
        if folder:
            packed = np.frombuffer("\0".join(missing).encode(), np.uint8)
            path = folder / f"{hashlib.sha256(packed.tobytes()).hexdigest()[:16]}.npz"
            np.savez(path, texts=packed, vectors=vectors.astype(np.float16))
    return known

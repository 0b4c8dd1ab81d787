"""The sentence vectors of many texts, for training: of one encoder, kept in a folder between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.encoder.chosen import ChosenEncoder

Array = NDArray[np.float32]


def embed(texts: Sequence[str]) -> Array:
    """[N, 384], of unit length, from the encoder that ships, in int8 on one thread."""
    return ChosenEncoder().embed(texts)


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

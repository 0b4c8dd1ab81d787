"""Sentence vectors of the training texts, kept in a folder between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.encoder.corpus import embed

Array = NDArray[np.float32]
DIMENSIONS = 384
"""Dimensions of the embedded encoder's vectors."""


def vectors_of(
    texts: Sequence[str], folder: Path, embed: Callable[[Sequence[str]], Array] = embed
) -> tuple[Array, NDArray[np.int64]]:
    """(vectors of the distinct texts, the row of each text); only new texts are embedded."""
    if not texts:
        return np.zeros((0, DIMENSIONS), np.float32), np.zeros(0, np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    digests = [hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest() for text in texts]
    row_of: dict[bytes, int] = {}
    parts = []
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as stored:
            for digest in stored["digests"]:
                row_of.setdefault(digest.tobytes(), len(row_of))
            parts.append(stored["vectors"])
    missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in row_of}
    if missing:
        parts.append(embed(list(missing.values())).astype(np.float16))
        stacked = np.frombuffer(b"".join(missing), np.uint8).reshape(-1, 16)
        np.savez(folder / f"{len(row_of):09d}.npz", digests=stacked, vectors=parts[-1])
        row_of |= {digest: len(row_of) + i for i, digest in enumerate(missing)}
    return np.concatenate(parts), np.array([row_of[digest] for digest in digests])

"""The embedded encoder, once for all tests of the heads and the verifier."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from backend.encoder.checkpoint import BUILTIN
from backend.encoder.model import SentenceEncoder


@cache
def _encoder() -> SentenceEncoder:
    return SentenceEncoder.from_checkpoint(BUILTIN, 1)


@cache
def vector_of(text: str) -> NDArray[np.float32]:
    """Unit length, [384]."""
    encoder = _encoder()
    found: NDArray[np.float32] = encoder.embed(encoder.tokenize([text]))[0]
    return found

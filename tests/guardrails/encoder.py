"""The embedded encoder, once for all tests of the guardrails."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from backend.encoder.checkpoint import BUILTIN
from backend.encoder.model import SentenceEncoder


@cache
def _encoder() -> SentenceEncoder:
    return SentenceEncoder.from_checkpoint(BUILTIN, 1, is_int8=True)


def vectors_of(texts: Sequence[str]) -> NDArray[np.float32]:
    """[N, 384], of unit length."""
    if not texts:
        return np.zeros((0, 384), np.float32)
    return _encoder().embed(_encoder().tokenize(list(texts)))

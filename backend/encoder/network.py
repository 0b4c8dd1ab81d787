"""What an encoder runs on: token ids in, one vector for each input out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer


class Network(Protocol):
    """The loaded weights of an encoder. Used by one thread at a time."""

    tokenizer: Tokenizer  # neither cuts nor pads
    dimensions: int
    vocab_size: int  # ids are below it
    max_tokens: int  # of one input, special tokens included

    def embed(self, batch: Sequence[list[int]]) -> NDArray[np.float32]:
        """Vectors [B, D] of tokenized inputs, in one pass padded to the longest."""
        ...


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows [..., D] to length 1."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: NDArray[np.float32] = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return scaled

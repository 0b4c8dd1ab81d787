"""Log-probability of one token of each row, its rank, and log Σ exp of the row.

log p = logit - log Σ exp(logits); rank = 1 + the number of tokens with a larger logit.
logits [L, V] float32, chosen [L] int64 → [L] float32, int64, float32. NaN in a row makes its results NaN.
Bound: memory, reads the logits once (torch: four times).
"""

from __future__ import annotations

from torch import Tensor

from backend.kernels.device import uses_triton
from backend.kernels.logprobs import reference

__all__ = ["score"]


def score(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probabilities and ranks of `chosen`, and the rows' normalisers. Waits for no device."""
    if uses_triton(logits):
        from backend.kernels.logprobs.kernel import score as on_gpu

        return on_gpu(logits, chosen)
    return reference.score(logits, chosen)

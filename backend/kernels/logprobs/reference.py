"""Log-probabilities in torch."""

from __future__ import annotations

from torch import Tensor


def score(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probabilities and ranks of `chosen`, and the rows' normalisers."""
    normaliser = logits.logsumexp(dim=-1)
    own = logits.gather(1, chosen[:, None])
    return own[:, 0] - normaliser, (logits > own).sum(dim=-1).add_(1), normaliser

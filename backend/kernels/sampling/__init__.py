"""Draws a token per row on a GPU: temperature, top_k, top_p, min_p and the keyed inverse CDF.

A token weighs w = exp((logit - highest logit) / temperature), or 0 where a filter excludes it. The draw is
the first token, in order of ids, at which the sum of weights passes u · their sum, with u from seed and
position. The filters' thresholds are found by radix selection (as in Alabi et al., "Fast k-Selection
Algorithms for Graphics Processing Units", 2012) among the differences (highest - logit) / temperature as
integers of 30 bits, ten in each pass. Weights are added as integers, so no sum depends on an order.
logits [R, V] float32; words [R, 8] int32, the parameters (`SamplingBatch.words`); allowed [G, ceil(V / 32)]
int32, a bit for each token.
Bound: memory, reads the logits three times, and three times more for each of top_k and top_p.
On a CPU backend/sampling/sampler.py draws, in torch: the tests' oracle.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["forbid", "sample"]


def sample(
    logits: Tensor, words: Tensor, has_random: bool, has_top_k: bool, has_top_p: bool
) -> tuple[Tensor, Tensor]:
    """Token ids [R], and 1 for each row [R] that is sound: without NaN and not fully masked. Both int64.

    What no row has (a temperature, a top_k, a top_p) costs no launch.
    """
    from backend.kernels.sampling.kernel import sample as on_gpu

    token_ids, is_sound = on_gpu(logits, words, has_random, has_top_k, has_top_p)
    return token_ids, is_sound


def forbid(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """Add -inf in place to the tokens of `rows` [G] that `allowed` does not have."""
    from backend.kernels.sampling.kernel import forbid as on_gpu

    on_gpu(logits, rows, allowed)

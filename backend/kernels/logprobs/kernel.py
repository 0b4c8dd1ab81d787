"""Log-probabilities in Triton: a program for each row, which it reads once.

Sums of exponentials as Milakov and Gimelshein (2018), of every BLOCK-th token apart.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks


def score(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probabilities and ranks of `chosen` [L], and the rows' normalisers, of `logits` [L, V]."""
    num_rows, size = logits.shape
    assert logits.is_contiguous() and chosen.shape == (num_rows,) and chosen.is_contiguous()
    own, normaliser = (
        torch.empty_like(chosen, dtype=logits.dtype),
        torch.empty_like(chosen, dtype=logits.dtype),
    )
    ranks = torch.zeros_like(chosen)
    if num_rows:
        options = blocks("logprobs", "row", logits.dtype).options()
        _score[num_rows,](logits, chosen, own, ranks, normaliser, size, **options)
    return own, ranks, normaliser


@triton.jit
def _score(logits, chosen, own, ranks, normaliser, size, BLOCK: tl.constexpr):
    """Grid (L). logits [L, size]."""
    row = tl.program_id(0).to(tl.int64)
    logit = tl.load(logits + row * size + tl.load(chosen + row))
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    larger = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, size, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        each = tl.load(logits + row * size + token, mask=token < size, other=float("-inf"))
        larger += (each > logit).to(tl.int32)
        highest = tl.maximum(top, each)
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        total = total * tl.exp(top - finite) + tl.exp(each - finite)
        top = highest
    highest = tl.max(top, 0)
    finite = tl.where(highest == float("-inf"), 0.0, highest)
    log_sum = finite + tl.log(tl.sum(total * tl.exp(top - finite), 0))
    tl.store(own + row, logit - log_sum)
    tl.store(ranks + row, tl.sum(larger, 0).to(tl.int64) + 1)
    tl.store(normaliser + row, log_sum)

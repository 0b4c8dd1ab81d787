"""Log-probabilities of the raw distribution: before penalties, bias, temperature and filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from backend.types import TokenLogprobs

MAX_LOGITS_ELEMENTS = 2**24
"""Bound on the logits of one chunk of prompt positions (64 MiB of float32)."""


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Return, per row of `logits` [R, V] float32, the logprobs of `token_ids[r]` and the top `num_top[r]`."""
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    own = logits.gather(1, chosen)
    ranks = (logits > own).sum(dim=-1, keepdim=True).add_(1)
    # top-k over logits, normalised afterwards: no [R, V] tensor of log-probabilities is materialised.
    best, best_ids = logits.topk(min(max(num_top), logits.shape[1]), dim=-1)
    # One download: float64 holds float32 and all of these integers exactly.
    parts = (own - normaliser, ranks, best - normaliser, best_ids)
    records = torch.cat([part.double() for part in parts], dim=1).tolist()
    width = best.shape[1]
    return [
        TokenLogprobs(
            token_id=token_ids[row],
            logprob=logprob,
            top=list(zip(map(int, top[width:]), top[: min(count, width)], strict=False)),
            rank=int(rank),
        )
        for row, (count, (logprob, rank, *top)) in enumerate(zip(num_top, records, strict=True))
    ]


def prompt_logprobs(
    hidden: Tensor,
    targets: Sequence[int],
    num_top: int,
    logits_of: Callable[[Tensor], Tensor],
    vocab_size: int,
) -> list[TokenLogprobs]:
    """Return the logprobs of `targets[i]` [N] given the hidden state `hidden[i]` [N, D].

    Works in chunks of rows, so that memory does not grow with the prompt.
    """
    size = max(1, MAX_LOGITS_ELEMENTS // vocab_size)
    scored: list[TokenLogprobs] = []
    for start in range(0, len(targets), size):
        part = targets[start : start + size]
        scored += token_logprobs(logits_of(hidden[start : start + size]), part, [num_top] * len(part))
    return scored

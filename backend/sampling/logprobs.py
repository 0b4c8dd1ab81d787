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
    ranks = (logits > own).sum(dim=-1).add_(1).tolist()
    own_logprobs = (own - normaliser)[:, 0].tolist()
    # top-k over logits, normalised afterwards: no [R, V] tensor of log-probabilities is materialised.
    best, best_ids = logits.topk(min(max(num_top), logits.shape[1]), dim=-1)
    best_logprobs, ids = (best - normaliser).tolist(), best_ids.tolist()
    return [
        TokenLogprobs(
            token_id=token_ids[row],
            logprob=own_logprobs[row],
            top=list(zip(ids[row][:count], best_logprobs[row][:count], strict=True)),
            rank=ranks[row],
        )
        for row, count in enumerate(num_top)
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

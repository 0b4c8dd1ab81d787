"""Log-probabilities of the raw distribution: before penalties, bias, temperature and filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from backend.kernels.logprobs import score
from backend.sampling.download import download
from backend.types import TokenLogprobs

MAX_LOGITS_ELEMENTS = 2**24
"""Bound on the logits of one chunk of prompt positions (64 MiB of float32)."""


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Return, per row of `logits` [R, V] float32, the logprobs of `token_ids[r]` and the top `num_top[r]`."""
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    return token_records(token_ids, num_top, download(scores(logits, chosen, max(num_top))))


def scores(logits: Tensor, chosen: Tensor, num_top: int) -> list[Tensor]:
    """On the device: log-probability and rank [R] of each row's `chosen` [R]; the top ones [R, K] and ids."""
    own, ranks, normaliser = score(logits, chosen)
    # top-k over logits, normalised afterwards: no [R, V] tensor of log-probabilities is materialised.
    best, best_ids = logits.topk(min(num_top, logits.shape[1]), dim=-1)
    return [own, ranks, best - normaliser[:, None], best_ids]


def token_records(
    token_ids: Sequence[int], num_top: Sequence[int], parts: Sequence[list[Any]]
) -> list[TokenLogprobs]:
    """What `scores` found, downloaded: a record for each row, with its top `num_top[r]`."""
    return [
        TokenLogprobs(
            token_id=token_id, logprob=own, top=list(zip(ids, best, strict=True))[:count], rank=rank
        )
        for token_id, count, own, rank, best, ids in zip(token_ids, num_top, *parts, strict=True)
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

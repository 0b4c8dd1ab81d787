"""Grammars → logits: what no grammar allows becomes -inf, in the rows that have one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from backend.types import Draft, TokenGrammar


def apply_grammars(logits: Tensor, grammars: Sequence[tuple[int, TokenGrammar, Draft]]) -> None:
    """Mask `logits` [R, V] in place; triples of (row of its first position, grammar, drafts after that).

    A grammar with k drafts masks k + 1 neighbouring rows.
    """
    if not grammars:
        return
    assert sys.byteorder == "little", "bits of a mask are read as little-endian bytes"
    vocab_size = logits.shape[1]
    counts = [len(drafts) + 1 for _, _, drafts in grammars]
    masks = np.zeros((sum(counts), -(-vocab_size // 32)), dtype=np.int32)
    ends = np.cumsum(counts)
    rows: list[int] = []
    for (row, grammar, drafts), end, count in zip(grammars, ends.tolist(), counts, strict=True):
        if drafts:
            masks[end - count : end] = -1
            grammar.fill_masks(masks[end - count : end], drafts)
        else:
            grammar.fill_mask(masks[end - 1])
        rows += range(row, row + count)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :vocab_size]
    is_banned = torch.from_numpy(bits == 0).to(logits.device)
    if logits.is_cuda:
        index = torch.tensor(rows, device=logits.device)
        logits[index] = logits[index].masked_fill_(is_banned, float("-inf"))
        return
    for i, row in enumerate(rows):
        logits[row].masked_fill_(is_banned[i], float("-inf"))

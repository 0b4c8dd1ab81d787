"""Conversations as padded batches of similar length, and the forward pass that trainer and scorer share.

Rows are padded on the right, so under a causal mask padding is never seen and every conversation starts at
position 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from backend.pico.model import Model

Encoded = tuple[list[int], list[bool]]
MAX_BATCH_TOKENS = 1400
MAX_STRETCH = 1.25  # longest row of a batch over its shortest


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded token ids with the positions to learn."""

    ids: Tensor  # (rows, length)
    real: Tensor  # (rows, length): what is not padding
    predict_from: Tensor  # flat positions in ids whose next token counts
    targets: Tensor  # those next tokens
    rows: Tensor  # the row, in the given order of conversations, of each target


def group_by_length(encoded: Sequence[Encoded], max_tokens: int = MAX_BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices of conversations of similar length, at most `max_tokens` with padding per group."""
    group: list[int] = []
    for index in sorted(range(len(encoded)), key=lambda i: len(encoded[i][0])):
        length = len(encoded[index][0])
        if group and (
            (len(group) + 1) * length > max_tokens or length > MAX_STRETCH * len(encoded[group[0]][0]) + 4
        ):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def make_batch(encoded: Sequence[Encoded], indices: Sequence[int]) -> Batch:
    """Pad the chosen conversations on the right with token 0."""
    length = max(len(encoded[index][0]) for index in indices)
    # Never a single row: a compiled model would be compiled again for that size.
    ids = torch.zeros(max(2, len(indices)), length, dtype=torch.long)
    real = torch.zeros(ids.shape, dtype=torch.bool)
    positions: list[int] = []
    targets: list[int] = []
    rows: list[int] = []
    for row, index in enumerate(indices):
        tokens, learnt = encoded[index]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        real[row, : len(tokens)] = True
        for place in range(1, len(tokens)):
            if learnt[place]:
                positions.append(row * length + place - 1)
                targets.append(tokens[place])
                rows.append(index)
    return Batch(ids, real, torch.tensor(positions), torch.tensor(targets), torch.tensor(rows))


def forward(model: Model, batch: Batch) -> Tensor:
    """Logits of the positions to learn only: (targets, vocabulary)."""
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden.flatten(0, 1)[batch.predict_from])
    return logits


@torch.no_grad()
def all_right(model: Model, encoded: Sequence[Encoded]) -> list[bool]:
    """For each conversation, whether greedy decoding would give exactly its answers; needs no decoding."""
    right = torch.ones(len(encoded), dtype=torch.bool)
    for indices in group_by_length(encoded, 4 * MAX_BATCH_TOKENS):
        batch = make_batch(encoded, indices)
        wrong = forward(model, batch).argmax(-1) != batch.targets
        right[batch.rows[wrong]] = False
    return right.tolist()

"""Conversations as padded batches of similar length, and the forward pass of trainer and scorer.

Rows are padded on the right: under a causal mask padding is never attended to, and positions start at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from backend.pico.model import Model

Encoded = tuple[list[int], list[bool]]
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one batch."""

    tokens: int  # including padding
    stretch: float  # longest row / shortest row

    @classmethod
    def on(cls, device: torch.device) -> Limits:
        """Return the limits for a device: on CPU few tokens, to fit its caches; on GPU few, large batches."""
        return cls(1400, 1.25) if device.type == "cpu" else cls(16_384, 4.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded token ids and the positions that the loss counts."""

    ids: Tensor  # (rows, length)
    real: Tensor  # (rows, length): False for padding
    predict_from: Tensor  # flat positions in ids whose next token is a target
    targets: Tensor  # the target tokens
    rows: Tensor  # for each target, the index of its conversation

    def to(self, device: torch.device) -> Batch:
        """Return a copy on another device."""
        if device.type == "cpu":
            return self
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


def group_by_length(encoded: Sequence[Encoded], limits: Limits) -> Iterator[list[int]]:
    """Yield the indices of conversations of similar length, within the limits."""
    group: list[int] = []
    for index in sorted(range(len(encoded)), key=lambda i: len(encoded[i][0])):
        length = len(encoded[index][0])
        if group and (
            (len(group) + 1) * length > limits.tokens
            or length > limits.stretch * len(encoded[group[0]][0]) + 4
        ):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def make_batch(encoded: Sequence[Encoded], indices: Sequence[int]) -> Batch:
    """Pad the chosen conversations on the right with token 0."""
    length = max(len(encoded[index][0]) for index in indices)
    # At least two rows: torch.compile would recompile for a batch of one.
    ids = torch.zeros(max(2, len(indices)), length, dtype=torch.long, device=CPU)
    real = torch.zeros(ids.shape, dtype=torch.bool, device=CPU)
    positions: list[int] = []
    targets: list[int] = []
    rows: list[int] = []
    for row, index in enumerate(indices):
        tokens, learnt = encoded[index]
        ids[row, : len(tokens)] = torch.tensor(tokens, device=CPU)
        real[row, : len(tokens)] = True
        for place in range(1, len(tokens)):
            if learnt[place]:
                positions.append(row * length + place - 1)
                targets.append(tokens[place])
                rows.append(index)
    numbers = (torch.tensor(each, device=CPU) for each in (positions, targets, rows))
    return Batch(ids, real, *numbers)


def forward(model: Model, batch: Batch) -> Tensor:
    """Return the logits of the target positions only: (targets, vocabulary)."""
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden.flatten(0, 1)[batch.predict_from])
    return logits


@torch.no_grad()
def are_answers_exact(model: Model, encoded: Sequence[Encoded]) -> list[bool]:
    """Return per conversation whether greedy decoding would give exactly its answers (teacher-forced)."""
    right = torch.ones(len(encoded), dtype=torch.bool, device=model.device)
    limits = Limits.on(model.device)
    for indices in group_by_length(encoded, Limits(4 * limits.tokens, limits.stretch)):
        batch = make_batch(encoded, indices).to(model.device)
        wrong = forward(model, batch).argmax(-1) != batch.targets
        right[batch.rows[wrong]] = False
    return right.tolist()

"""Logits processors: penalties, logit bias and banned tokens, batched as flat (row, token) entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class TokenCounts:
    """Counts of each token in one sequence's output; tokens of the prompt alone are included with count 0.

    Memory is O(distinct tokens), not O(vocabulary); adding a token costs one dictionary lookup.
    """

    __slots__ = ("_counts", "_ids", "_index", "_size")

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        seen = sorted(set(prompt))
        self._index = {token: i for i, token in enumerate(seen)}
        self._size = len(seen)
        self._ids: Ints = np.zeros(max(64, 2 * self._size), dtype=np.int64)
        self._ids[: self._size] = seen
        self._counts: Floats = np.zeros(len(self._ids), dtype=np.float32)
        for token in output:
            self.add(token)

    @property
    def ids(self) -> Ints:
        """The distinct tokens, unordered."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Floats:
        """Occurrences in the output, aligned with `ids`."""
        return self._counts[: self._size]

    def add(self, token: int) -> None:
        """Count one output token."""
        i = self._index.get(token)
        if i is None:
            i = self._append(token)
        self._counts[i] += 1

    def after(self, tokens: Iterable[int]) -> TokenCounts:
        """Return a copy with these output tokens added."""
        copy = TokenCounts((), ())
        copy._index, copy._size = dict(self._index), self._size
        copy._ids, copy._counts = self._ids.copy(), self._counts.copy()
        for token in tokens:
            copy.add(token)
        return copy

    def _append(self, token: int) -> int:
        i = self._size
        if i == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[i] = token
        self._index[token] = i
        self._size = i + 1
        return i


@dataclass(frozen=True, slots=True)
class RowEdits:
    """Penalties and bias of one row of logits."""

    counts: TokenCounts | None = None  # None: no penalty
    repetition: float = 1.0  # prompt and output tokens: divides positive logits, multiplies negative ones
    presence: float = 0.0  # output tokens: subtracted once
    frequency: float = 0.0  # output tokens: subtracted per occurrence
    bias_ids: Ints | None = None
    bias_values: Floats | None = None

    @classmethod
    def build(
        cls, counts: TokenCounts | None, penalties: tuple[float, float, float], bias: Mapping[int, float]
    ) -> RowEdits:
        """Build from penalties (repetition, presence, frequency) and a logit bias by token id."""
        return cls(
            counts,
            *penalties,
            bias_ids=np.fromiter(bias.keys(), np.int64, len(bias)) if bias else None,
            bias_values=np.fromiter(bias.values(), np.float32, len(bias)) if bias else None,
        )


def apply_edits(logits: Tensor, edits: list[tuple[int, RowEdits]]) -> None:
    """Apply `edits`, pairs of (row, edit), to `logits` [R, V] float32 in place.

    Order: repetition penalty (as in transformers), presence and frequency penalty (as in OpenAI's API), bias.
    """
    _apply_penalties(logits, [(row, edit) for row, edit in edits if edit.counts is not None])
    biased = [(row, edit.bias_ids, edit.bias_values) for row, edit in edits if edit.bias_ids is not None]
    if biased:
        index = _entries(logits, [(row, ids) for row, ids, _ in biased])
        values = np.concatenate([values for _, _, values in biased if values is not None])
        logits.index_put_(index, torch.from_numpy(values).to(logits.device), accumulate=True)


def ban_tokens(logits: Tensor, banned: list[tuple[int, Ints]]) -> None:
    """Set the logits of banned token ids to -inf in place; `banned` has pairs of (row, token ids)."""
    if banned:
        minus_infinity = torch.tensor(float("-inf"), dtype=logits.dtype, device=logits.device)
        logits.index_put_(_entries(logits, banned), minus_infinity)


def ban_where_feasible(logits: Tensor, banned: list[tuple[int, Ints]]) -> None:
    """Ban as `ban_tokens` does, but not in rows [V] that it would leave without a finite logit.

    The rows in `banned` are distinct. The device decides: the host does not wait for it.
    """
    if not banned:
        return
    rows = torch.tensor([row for row, _ in banned], device=logits.device)
    unbanned = logits[rows]
    left = unbanned.clone()
    ban_tokens(left, [(i, ids) for i, (_, ids) in enumerate(banned)])
    is_feasible = (left > float("-inf")).any(dim=1, keepdim=True)
    logits[rows] = torch.where(is_feasible, left, unbanned)


def _apply_penalties(logits: Tensor, edits: list[tuple[int, RowEdits]]) -> None:
    found = [
        (row, edit, edit.counts) for row, edit in edits if edit.counts is not None and len(edit.counts.ids)
    ]
    if not found:
        return
    index = _entries(logits, [(row, counts.ids) for row, _, counts in found])
    sizes = [len(counts.ids) for _, _, counts in found]
    repetition = np.repeat(np.array([edit.repetition for _, edit, _ in found], dtype=np.float32), sizes)
    penalty = np.concatenate(
        [edit.frequency * counts.counts + edit.presence * (counts.counts > 0) for _, edit, counts in found]
    ).astype(np.float32)
    values = logits[index]
    factor = torch.from_numpy(repetition).to(logits.device)
    values = torch.where(values < 0, values * factor, values / factor)
    logits.index_put_(index, values.sub_(torch.from_numpy(penalty).to(logits.device)))


def _entries(logits: Tensor, parts: list[tuple[int, Ints]]) -> tuple[Tensor, Tensor]:
    """Return index tensors (rows, token ids) over all `parts`, pairs of (row, token ids)."""
    rows = np.repeat(np.array([row for row, _ in parts], dtype=np.int64), [len(ids) for _, ids in parts])
    ids = np.concatenate([ids for _, ids in parts])
    return torch.from_numpy(rows).to(logits.device), torch.from_numpy(ids).to(logits.device)

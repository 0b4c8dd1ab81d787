"""Logits processors: penalties, logit bias and banned tokens, batched as flat (row, token) entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.sampling.changes import Change

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


class OriginalRows:
    """Rows of the logits as they are before changes that follow: a copy on their device."""

    rows: Tensor
    logits: Tensor

    def __init__(self, rows: list[int]) -> None:
        self._rows = rows

    def changes(self) -> list[Change]:
        """What makes the copy; nothing, if there are no rows."""
        return [Change(self._copy, [np.array(self._rows, dtype=np.int64)])] if self._rows else []

    def _copy(self, logits: Tensor, rows: Tensor) -> None:
        self.rows, self.logits = rows, logits[rows]


def edit_changes(edits: list[tuple[int, RowEdits]]) -> list[Change]:
    """The changes of `edits`, pairs of (row, edit).

    Order: repetition penalty (as in transformers), presence and frequency penalty (as in OpenAI's API), bias.
    """
    changes: list[Change] = []
    found = [
        (row, edit, edit.counts) for row, edit in edits if edit.counts is not None and len(edit.counts.ids)
    ]
    if found:
        sizes = [len(counts.ids) for _, _, counts in found]
        repetition = np.repeat(np.array([edit.repetition for _, edit, _ in found], dtype=np.float32), sizes)
        penalty = np.concatenate(
            [
                edit.frequency * counts.counts + edit.presence * (counts.counts > 0)
                for _, edit, counts in found
            ]
        ).astype(np.float32)
        entries = _entries([(row, counts.ids) for row, _, counts in found])
        changes.append(Change(_penalise, [*entries, repetition, penalty]))
    biased = [(row, edit.bias_ids, edit.bias_values) for row, edit in edits if edit.bias_ids is not None]
    if biased:
        values = np.concatenate([values for _, _, values in biased if values is not None])
        changes.append(Change(_add, [*_entries([(row, ids) for row, ids, _ in biased]), values]))
    return changes


def ban_changes(banned: list[tuple[int, Ints]], *, is_feasible_only: bool = False) -> list[Change]:
    """Set the logits of banned token ids to -inf; `banned` has pairs of (row, token ids).

    With `is_feasible_only`, not in rows that it would leave without a finite logit; the rows in `banned` are
    then distinct. The device decides: the host does not wait for it.
    """
    if not banned:
        return []
    if not is_feasible_only:
        return [Change(_ban, _entries(banned))]
    rows = np.array([row for row, _ in banned], dtype=np.int64)
    return [Change(_ban_where_feasible, [rows, *_entries([(i, ids) for i, (_, ids) in enumerate(banned)])])]


def _penalise(logits: Tensor, rows: Tensor, ids: Tensor, factors: Tensor, penalties: Tensor) -> None:
    values = logits[rows, ids]
    values = torch.where(values < 0, values * factors, values / factors)
    logits.index_put_((rows, ids), values.sub_(penalties))


def _add(logits: Tensor, rows: Tensor, ids: Tensor, values: Tensor) -> None:
    logits.index_put_((rows, ids), values, accumulate=True)


def _ban(logits: Tensor, rows: Tensor, ids: Tensor) -> None:
    logits.index_put_((rows, ids), logits.new_full((), float("-inf")))


def _ban_where_feasible(logits: Tensor, rows: Tensor, entry_rows: Tensor, ids: Tensor) -> None:
    unbanned = logits[rows]
    left = unbanned.clone()
    _ban(left, entry_rows, ids)
    is_feasible = (left > float("-inf")).any(dim=1, keepdim=True)
    logits[rows] = torch.where(is_feasible, left, unbanned)


def _entries(parts: list[tuple[int, Ints]]) -> list[Ints]:
    """Rows and token ids of all entries of `parts`, pairs of (row, token ids)."""
    rows = np.repeat(np.array([row for row, _ in parts], dtype=np.int64), [len(ids) for _, ids in parts])
    return [rows, np.concatenate([ids for _, ids in parts])]

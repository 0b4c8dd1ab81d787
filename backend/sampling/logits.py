"""Changes to logits before the draw: penalties, bias, banned tokens; flat lists of entries over all rows."""

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
    """How often each token occurred in one sequence's output; prompt tokens are known with count 0.

    Costs O(different tokens), not O(vocabulary), and one dictionary look-up per new token.
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
        """The different tokens, in no order."""
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
        """A copy that has counted these as well."""
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
    """What one sequence wants changed in its row of logits."""

    counts: TokenCounts | None = None  # None: no penalty
    repetition: float = 1.0  # prompt and output: positive logits are divided, negative ones multiplied
    presence: float = 0.0  # output: subtracted once
    frequency: float = 0.0  # output: subtracted per occurrence
    bias_ids: Ints | None = None
    bias_values: Floats | None = None

    @classmethod
    def build(
        cls, counts: TokenCounts | None, penalties: tuple[float, float, float], bias: Mapping[int, float]
    ) -> RowEdits:
        """`penalties` are (repetition, presence, frequency)."""
        return cls(
            counts,
            *penalties,
            bias_ids=np.fromiter(bias.keys(), np.int64, len(bias)) if bias else None,
            bias_values=np.fromiter(bias.values(), np.float32, len(bias)) if bias else None,
        )


def apply_edits(logits: Tensor, edits: list[tuple[int, RowEdits]]) -> None:
    """Change `logits` [R, V] float32 in place; `edits` pairs an index into R with what that row wants.

    Order: repetition (as transformers' processor), presence and frequency (as OpenAI's), bias.
    """
    _apply_penalties(logits, [(row, edit) for row, edit in edits if edit.counts is not None])
    biased = [(row, edit.bias_ids, edit.bias_values) for row, edit in edits if edit.bias_ids is not None]
    if biased:
        index = _entries(logits, [(row, ids) for row, ids, _ in biased])
        values = np.concatenate([values for _, _, values in biased if values is not None])
        logits.index_put_(index, torch.from_numpy(values).to(logits.device), accumulate=True)


def ban_tokens(logits: Tensor, banned: list[tuple[int, Ints]]) -> None:
    """Set the logits of these token ids to -inf in place; pairs of (index into R, ids)."""
    if banned:
        minus_infinity = torch.tensor(float("-inf"), dtype=logits.dtype, device=logits.device)
        logits.index_put_(_entries(logits, banned), minus_infinity)


def bearable(logits: Tensor, banned: list[tuple[int, Ints]]) -> list[tuple[int, Ints]]:
    """Those bans that leave their row of `logits` [R, V] a token: where nothing else may come, that must."""
    found: list[tuple[int, Ints]] = []
    for row, ids in banned:
        is_left = logits[row] > float("-inf")
        is_left[torch.from_numpy(ids).to(logits.device)] = False
        if is_left.any():
            found.append((row, ids))
    return found


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
    """(row, token id) index tensors over all parts."""
    rows = np.repeat(np.array([row for row, _ in parts], dtype=np.int64), [len(ids) for _, ids in parts])
    ids = np.concatenate([ids for _, ids in parts])
    return torch.from_numpy(rows).to(logits.device), torch.from_numpy(ids).to(logits.device)

"""Keys and values of one drafting round: what is known of each sequence, and columns for what is drafted.

B sequences side by side, [B, C, 2 * kv_heads, head_dim] per layer. The first columns hold known tokens,
aligned left and padded to the longest; then the tokens that the round begins with, aligned right; then, at
the same column for all, one drafted token after the other. A mask hides the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.types import PAGE_TOKENS

Ints = NDArray[np.int64]


_MOST_COLUMNS = 128
"""Columns that tokens may be put at one by one."""


@dataclass(frozen=True, slots=True)
class RoundShape:
    """Who takes part in a round, with how much."""

    known: list[int]  # [B] tokens whose keys and values are there
    begins: list[int]  # [B] tokens that are computed first; the last known token is among them
    num_drafted: int  # further tokens computed, one after the other

    @property
    def longest(self) -> int:
        """Columns of known tokens."""
        return max(self.known)

    @property
    def width(self) -> int:
        """Columns of the tokens that are computed first."""
        return max(self.begins)

    @property
    def columns(self) -> int:
        """C."""
        return self.longest + self.width + self.num_drafted

    @property
    def is_ragged(self) -> bool:
        """True when there is padding to hide."""
        return min(self.known) != self.longest or min(self.begins) != self.width

    def positions(self) -> Ints:
        """Of the columns behind the known ones [B, width + num_drafted]; negative is padding."""
        first = np.array(self.known, dtype=np.int64) + np.array(self.begins) - self.width
        found: Ints = first[:, None] + np.arange(self.width + self.num_drafted)
        if self.is_ragged:
            padding = np.arange(found.shape[1]) < (self.width - np.array(self.begins))[:, None]
            found = np.where(padding, -1, found)
        return found

    def masks(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Added to scores: [B or 1, 1, width, longest + width] first, [B, 1, 1, C] later; None: no need."""
        first = later = None
        if self.is_ragged:
            columns = np.arange(self.columns)
            known, begins = np.array(self.known)[:, None], np.array(self.begins)[:, None]
            padding = (columns >= known) & (columns < self.longest + self.width - begins)
            later = _additive(padding[:, None, None], dtype, device)
        if self.width > 1:
            edge = self.longest + self.width
            own = np.arange(self.longest, edge)[:, None]
            hidden = (np.arange(edge) > own)[None]
            if self.is_ragged:
                # Padding sees itself: where nothing is to be seen there is no distribution.
                hidden = hidden | (padding[:, None, :edge] & (np.arange(edge) != own))
            first = _additive(hidden[:, None], dtype, device)
        elif later is not None:
            first = later[..., : self.longest + 1]
        return first, later


@dataclass(slots=True)
class RoundKV:
    """One layer's part of a round."""

    data: Tensor  # [B, C, 2 * kv_heads, head_dim]
    keys: Tensor  # [B, kv_heads, C, head_dim]: views
    values: Tensor
    columns: tuple[Tensor, ...]  # [B, 2 * kv_heads, head_dim] each: those behind what is known
    num_known: int

    @classmethod
    def of(cls, data: Tensor, num_known: int) -> RoundKV:
        """Around [B, C, 2 * kv_heads, head_dim], of which so many columns are known."""
        keys, values = data.transpose(1, 2).chunk(2, dim=1)
        own = data[:, num_known : num_known + _MOST_COLUMNS]
        return cls(data, keys, values, own.unbind(1), num_known)

    def put(self, start: int, keys_values: Tensor) -> int:
        """Write [B * n, 2 * kv_heads, head_dim] at the columns from `start` on; where they end."""
        count = self.data.shape[0]
        if len(keys_values) == count:
            self.columns[start - self.num_known].copy_(keys_values)
            return start + 1
        end = start + len(keys_values) // count
        self.data[:, start:end] = keys_values.view(count, -1, *keys_values.shape[1:])
        return end


def gather(
    storage: Tensor, pages: Tensor, shape: RoundShape, dtype: torch.dtype, skipped: int = 0
) -> RoundKV:
    """A layer's storage [num_pages, 16, 2, kv_heads, head_dim], pages [B * P] by sequence → its part.

    What is known lies behind the first `skipped` slots of a sequence.
    """
    count = len(shape.known)
    sizes = (2 * storage.shape[3], storage.shape[4])
    data = torch.empty(count, shape.columns, *sizes, dtype=dtype, device=storage.device)
    if shape.longest:
        found = storage.index_select(0, pages).view(count, -1, *sizes)
        data[:, : shape.longest] = found[:, skipped : skipped + shape.longest]
    return RoundKV.of(data, shape.longest)


def page_table(pages: Sequence[Sequence[int]], num_tokens: int) -> Ints:
    """[B, pages of num_tokens], padded with 0."""
    width = -(-num_tokens // PAGE_TOKENS)
    table = np.zeros((len(pages), width), dtype=np.int64)
    for row, own in zip(table, pages, strict=True):
        row[: len(own)] = own[:width]
    return table


def slots_of(table: Ints, positions: Ints, trash: int) -> Ints:
    """Where tokens at `positions` [B, N] lie by the page table [B, P]; padding (negative) goes to `trash`."""
    pages = np.take_along_axis(table, np.maximum(positions, 0) // PAGE_TOKENS, axis=1)
    return np.where(positions < 0, trash, pages * PAGE_TOKENS + positions % PAGE_TOKENS)


def _additive(hidden: NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> Tensor:
    mask = torch.zeros(hidden.shape, dtype=dtype)
    return mask.masked_fill_(torch.from_numpy(hidden), float("-inf")).to(device)

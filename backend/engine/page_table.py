"""The page table: the KV pages of each row's owner, on the host and where attention reads them.

On a CPU that is the same memory. Another device has a copy, which gets what changed with each step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from backend.kernels.device import has_triton
from backend.kernels.page_table import set_pages
from backend.layers.step_input import Ints, Words
from backend.types import PAGE_TOKENS

_NO_CHANGES = np.empty((3, 0), dtype=np.int32)


class PageTable:
    """[rows, pages]. A row's valid columns are its owner's pages when it was last in a step."""

    def __init__(self, max_rows: int, max_pages: int, device: torch.device) -> None:
        self._host = np.zeros((max_rows, max_pages), dtype=np.int64)
        self._is_copied = has_triton(device)
        self.on_device: Tensor = torch.from_numpy(self._host)
        if self._is_copied:
            self.on_device = torch.zeros(max_rows, max_pages, dtype=torch.int32, device=device)
        self.num_known = [0] * max_rows  # columns that will not change while the row has its owner
        self._unsent: dict[int, tuple[int, int]] = {}  # row → first and last column that the copy may lack

    def grow(self, row: int, pages: list[int], num_kept: int) -> None:
        """Set the columns of a row; `num_kept` of its `pages` will not change."""
        known, end = self.num_known[row], len(pages)
        if end <= known:
            return
        self._host[row, known:end] = pages[known:]
        self.num_known[row] = num_kept
        if self._is_copied:
            begin, last = self._unsent.get(row, (known, end))
            self._unsent[row] = min(begin, known), max(last, end)

    def clear(self, row: int) -> None:
        """The row's owner is gone."""
        self._host[row] = 0
        self.num_known[row] = 0
        self._unsent.pop(row, None)

    def slots(self, rows: Ints, places: Ints) -> Ints:
        """KV slots of the tokens at these places of `rows`: [T] from two [T]."""
        pages: Ints = self._host[rows, places // PAGE_TOKENS]
        return pages * PAGE_TOKENS + places % PAGE_TOKENS

    def changes(self) -> Words:
        """Rows, columns and pages that the copy may lack, [3, C]."""
        if not self._unsent:
            return _NO_CHANGES
        ends = np.array(list(self._unsent.values()))
        counts = ends[:, 1] - ends[:, 0]
        rows = np.repeat(list(self._unsent), counts)
        offsets = np.cumsum(counts) - counts
        columns = np.repeat(ends[:, 0] - offsets, counts) + np.arange(len(rows))
        return np.stack((rows, columns, self._host[rows, columns])).astype(np.int32)

    def apply(self, changes: Tensor) -> None:
        """Write what `changes` returned, and is on the device now, into the copy.

        A step that fails before loses nothing: the next one has its changes as well.
        """
        if self._unsent:
            set_pages(self.on_device, changes)
            self._unsent.clear()

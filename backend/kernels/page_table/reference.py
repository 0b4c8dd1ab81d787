"""Changes of the page table in torch."""

from __future__ import annotations

from torch import Tensor


def set_pages(table: Tensor, changes: Tensor) -> None:
    """Write the pages of all changes into `table`."""
    rows, columns, pages = changes.unbind()
    table[rows, columns] = pages

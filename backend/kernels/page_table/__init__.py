"""Changes of the page table on a device: table[row, column] = page for each of them.

table [R, P] int32; changes [3, C] int32: rows, columns and pages, no place twice. In place.
Bound: launch; a step changes a few pages, 16 bytes each.
"""

from __future__ import annotations

from torch import Tensor

from backend.kernels.device import uses_triton
from backend.kernels.page_table import reference

__all__ = ["set_pages"]


def set_pages(table: Tensor, changes: Tensor) -> None:
    """Write the pages of all changes into `table`."""
    assert table.dim() == 2 and table.is_contiguous() and len(changes) == 3 and changes.is_contiguous()
    if uses_triton(table):
        from backend.kernels.page_table.kernel import set_pages as on_gpu

        on_gpu(table, changes)
        return
    reference.set_pages(table, changes)

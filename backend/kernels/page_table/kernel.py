"""Changes of the page table in Triton: a program for a block of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks


def set_pages(table: Tensor, changes: Tensor) -> None:
    """Write the pages of all changes [3, C] into `table` [R, P]."""
    count = changes.shape[1]
    if count:
        options = blocks("page_table", "changes", torch.int32).options()
        _set_pages[triton.cdiv(count, options["BLOCK"]),](table, changes, count, table.stride(0), **options)


@triton.jit
def _set_pages(table, changes, count, stride, BLOCK: tl.constexpr):
    """BLOCK changes. Grid (C / BLOCK); table [R, stride], changes [3, count]."""
    change = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = change < count
    row = tl.load(changes + change, mask=mask, other=0).to(tl.int64)
    column = tl.load(changes + count + change, mask=mask, other=0)
    page = tl.load(changes + 2 * count + change, mask=mask, other=0)
    tl.store(table + row * stride + column, page, mask=mask)

"""Changes of the page table in Triton; all pages are below 256, which floats of 16 bits hold."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from backend.kernels.page_table.kernel import set_pages
from tests.backend.kernels.cases import Cases, Launch, Value


def value(count: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """A table after `count` changes, and the same one change at a time."""
    table = torch.randint(256, (31, 40), dtype=torch.int32)
    places = torch.randperm(table.numel())[:count]
    changes = torch.stack((places // 40, places % 40, torch.randint(256, (count,)))).to(torch.int32)
    expected, found = table.clone(), table.to(device)
    for row, column, page in changes.T.tolist():
        expected[row, column] = page
    set_pages(found, changes.to(device))
    return found.to(dtype).cpu(), expected.double()


def launched(dtype: torch.dtype) -> None:
    set_pages(torch.zeros(256, 512, dtype=torch.int32), torch.zeros(3, 40, dtype=torch.int32))


CASES = Cases(
    [Value(f"{count} changes", partial(value, count)) for count in (0, 1, 128, 1000)],
    [Launch("changes of a step", launched, narrow=["_set_pages"])],
)

"""Changes of the page table, on a CPU."""

from __future__ import annotations

import torch

from backend.kernels.page_table import set_pages


def test_each_change_is_written_and_nothing_else() -> None:
    table = torch.arange(12, dtype=torch.int32).view(3, 4)
    set_pages(table, torch.tensor([[2, 0, 2], [1, 3, 0], [-7, 50, 60]], dtype=torch.int32))
    assert table.tolist() == [[0, 1, 2, 50], [4, 5, 6, 7], [60, -7, 10, 11]]
    set_pages(table, torch.empty(3, 0, dtype=torch.int32))
    assert table.tolist() == [[0, 1, 2, 50], [4, 5, 6, 7], [60, -7, 10, 11]]

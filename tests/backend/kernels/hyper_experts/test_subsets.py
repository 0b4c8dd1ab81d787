"""Sets of chosen experts are numbered without gaps, whatever the order within a set."""

from __future__ import annotations

import math

import pytest
import torch

from backend.kernels.hyper_experts.subsets import all_subsets, binomial_table, subset_numbers


@pytest.mark.parametrize(("num_experts", "size"), [(8, 2), (6, 3), (5, 1), (4, 4)])
def test_numbers_count_up_over_all_subsets(num_experts: int, size: int) -> None:
    subsets = all_subsets(num_experts, size)
    assert len({tuple(row) for row in subsets.tolist()}) == len(subsets) == math.comb(num_experts, size)
    shuffled = subsets[:, torch.randperm(size, generator=torch.Generator().manual_seed(1))]
    numbers = subset_numbers(shuffled, binomial_table(num_experts, size))
    assert numbers.tolist() == list(range(len(subsets)))

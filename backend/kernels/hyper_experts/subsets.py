"""Numbers the sets of chosen experts: a set {c₁ < … < c_k} has the number Σᵢ binomial(cᵢ, i)."""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor


def all_subsets(num_experts: int, size: int) -> Tensor:
    """Every set of `size` experts in the order of its number: [sets, size], ascending within a set."""
    # combinations() counts up by the first element, the numbering by the last.
    reverse = [subset[::-1] for subset in combinations(range(num_experts - 1, -1, -1), size)]
    return torch.tensor(reverse[::-1])


def binomial_table(num_experts: int, size: int) -> Tensor:
    """[size, num_experts]: what each member contributes to its set's number, by place and expert."""
    rows = [[math.comb(expert, place) for expert in range(num_experts)] for place in range(1, size + 1)]
    return torch.tensor(rows)


def subset_numbers(chosen: Tensor, binomials: Tensor) -> Tensor:
    """The number of each row's set: [T, k] in any order → [T]."""
    return binomials.gather(1, chosen.sort(dim=1).values.T).sum(dim=0)

"""The loop gives what dense matrices give, each row the same bits in any company, at 16 bits where it may."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from backend.kernels.linear import paired
from backend.kernels.lora import AdapterRows
from backend.kernels.lora.looped import LoopWeights

NUM_SLOTS, FEATURES = 4, 21
Factors = tuple[Tensor, Tensor]


def random_factors(columns: Sequence[int], rank: int, dtype: torch.dtype, seed: int) -> Factors:
    """Down [parts * ranks, K] and up [ranks, N]."""
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(len(columns) * rank, FEATURES, generator=generator)
    up = torch.randn(rank, sum(columns), generator=generator)
    return down.to(dtype).float(), up.to(dtype).float()


def filled(columns: Sequence[int], rank: int, dtype: torch.dtype) -> tuple[LoopWeights, list[Factors]]:
    weights = LoopWeights(NUM_SLOTS, FEATURES, columns, rank)
    factors = [random_factors(columns, rank, dtype, seed) for seed in range(NUM_SLOTS)]
    for slot, each in enumerate(factors):
        weights.put(slot, *each)
    return weights, factors


def run(weights: LoopWeights, x: Tensor, y: Tensor, slots: Sequence[int]) -> Tensor:
    found = y.clone()
    x = x.contiguous()
    weights.add_rows(found, x, AdapterRows(np.array(slots), torch.device("cpu")))
    return found


def expected(
    factors: list[Factors], columns: Sequence[int], x: Tensor, y: Tensor, slots: Sequence[int]
) -> Tensor:
    found = y.double()
    for row, slot in enumerate(slots):
        if slot >= 0:
            down, up = (each.double() for each in factors[slot])
            low = (down @ x[row].double()).split(len(up))
            found[row] += torch.cat(
                [each @ part for each, part in zip(low, up.split(list(columns), dim=1), strict=True)]
            )
    return found.float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rank", [4, 8, 12, 20])
@pytest.mark.parametrize("columns", [(5,), (32,), (33, 64), (70, 3, 32)])
def test_equals_dense_matrices_to_the_same_bits_in_any_company(
    dtype: torch.dtype, rank: int, columns: Sequence[int]
) -> None:
    weights, factors = filled(columns, rank, dtype)
    slots = [0, -1, 1, 1, 2, 2, 2, 3, 3, 3, 3, -1, 1, *[2] * 37]
    x, y = torch.randn(len(slots), FEATURES), torch.randn(len(slots), sum(columns))
    found = run(weights, x, y, slots)
    torch.testing.assert_close(found, expected(factors, columns, x, y, slots), rtol=1e-4, atol=1e-4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paired, "_ONE_THREAD", 0)
        patch.setattr(torch, "get_num_threads", lambda: 3)
        assert torch.equal(run(weights, x, y, slots), found)
    for row, slot in enumerate(slots):
        assert torch.equal(run(weights, x[row:][:1], y[row:][:1], [slot])[0], found[row])


def test_adapters_are_held_at_16_bits_until_one_comes_that_needs_more() -> None:
    columns = (40, 8)
    weights, factors = filled(columns, 4, torch.bfloat16)
    assert weights.down.dtype == weights.up.dtype == np.uint16
    x, y, slots = torch.randn(4, FEATURES), torch.zeros(4, 48), [0, 1, 2, 3]
    before = run(weights, x, y, slots)
    for part in (0, 1):  # one of the two matrices is enough
        weights, factors = filled(columns, 4, torch.bfloat16)
        exact = random_factors(columns, 4, torch.float32, seed=9)
        factors[2] = (exact[0], factors[2][1]) if part == 0 else (factors[2][0], exact[1])
        weights.put(2, *factors[2])
        assert weights.down.dtype == weights.up.dtype == np.float32
        after = run(weights, x, y, slots)
        torch.testing.assert_close(after, expected(factors, columns, x, y, slots), rtol=1e-5, atol=1e-5)
        assert torch.equal(after[[0, 1, 3]], before[[0, 1, 3]]), "the others are as they were"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_slot_is_replaced_and_cleared(dtype: torch.dtype) -> None:
    weights, factors = filled((40,), 4, dtype)
    factors[1] = random_factors((40,), 4, dtype, seed=7)
    weights.put(1, *factors[1])
    weights.clear(2)
    x, y = torch.randn(2, FEATURES), torch.randn(2, 40)
    found = run(weights, x, y, [1, 2])
    torch.testing.assert_close(found[0], expected(factors, (40,), x, y, [1, 2])[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(found[1], y[1])

"""The record of quantised weights: what it stands for, and stacking."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend.quant.schemes import QuantizedWeight, stack


def weight(
    n: int, k: int, block: tuple[int, int], *, zeros: bool = False, order: bool = False, seed: int = 0
) -> QuantizedWeight:
    """Random values with random scales."""
    random = torch.Generator().manual_seed(seed)
    blocks = (-(-n // block[0]), -(-k // block[1]))
    return QuantizedWeight(
        "int4",
        torch.randint(-8, 8, (n, k), generator=random, dtype=torch.int8),
        torch.rand(blocks, generator=random) + 0.1,
        block,
        torch.randint(-8, 8, blocks, generator=random, dtype=torch.int8) if zeros else None,
        torch.randperm(k, generator=random) if order else None,
    )


@pytest.mark.parametrize("block", [(1, 4), (1, 12), (6, 12), (4, 5), (1, 1)])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("order", [False, True])
def test_every_element_is_its_value_without_the_zero_times_the_scale(
    block: tuple[int, int], zeros: bool, order: bool
) -> None:
    record = weight(6, 12, block, zeros=zeros, order=order)
    found = record.dequantize()
    for n in range(6):
        for k in range(12):
            i, j = n // block[0], k // block[1]
            value = record.values[n, k].float()
            if record.zeros is not None:
                value = value - record.zeros[i, j].float()
            column = k if record.order is None else int(record.order[k])
            assert found[n, column] == value * record.scales[i, j]


def test_stacked_weights_are_those_of_their_parts() -> None:
    parts = [weight(n, 8, (1, 4), zeros=True, seed=n) for n in (4, 2, 6)]
    stacked = stack(parts)
    assert stacked is not None
    assert torch.equal(stacked.dequantize(), torch.cat([part.dequantize() for part in parts]))


@pytest.mark.parametrize(
    "other",
    [
        weight(4, 8, (1, 2)),
        weight(4, 8, (1, 4), zeros=True),
        weight(4, 8, (1, 4), order=True),
        replace(weight(4, 8, (1, 4)), rounds_inputs=True),
    ],
)
def test_weights_of_other_layouts_are_not_stacked(other: QuantizedWeight) -> None:
    assert stack([weight(4, 8, (1, 4)), other]) is None


def test_weights_whose_blocks_would_straddle_are_not_stacked() -> None:
    assert stack([weight(3, 8, (2, 4)), weight(4, 8, (2, 4))]) is None
    assert stack([weight(4, 8, (2, 4)), weight(3, 8, (2, 4))]) is not None

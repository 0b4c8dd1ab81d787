"""Rows in 8 bits: errors within half a step, every row alone, no row that poisons another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.kernels.quantised_kv import LARGEST, dequantise, quantise, stored_width

DTYPES = pytest.mark.parametrize("dtype", LARGEST)


def through(values: Tensor, dtype: torch.dtype, into: torch.dtype = torch.float32) -> Tensor:
    return dequantise(quantise(values, dtype), values.shape[-1], into)


@DTYPES
@pytest.mark.parametrize("head_dim", [1, 7, 64])
def test_a_row_is_read_as_it_was_written(dtype: torch.dtype, head_dim: int) -> None:
    values = torch.randn(50, 3, head_dim) * torch.logspace(-12, 12, 50)[:, None, None]
    stored = quantise(values, dtype)
    assert stored.shape == (50, 3, stored_width(head_dim, dtype)) and stored.dtype is dtype
    error = (dequantise(stored, head_dim, torch.float32) - values).abs()
    largest = values.abs().amax(-1, keepdim=True)
    # Half a step of the integers, or of three bits of mantissa, and what rounding the scale may cut off.
    limit = largest / 254 if dtype is torch.int8 else torch.maximum(values.abs() / 16, largest / 2**18)
    assert (error <= limit * 1.01 + largest * 2**-8 * (values.abs() == largest)).all()


@DTYPES
def test_a_row_depends_on_no_other(dtype: torch.dtype) -> None:
    values = torch.randn(9, 2, 16)
    together = quantise(values, dtype).view(torch.int8)
    for row, alone in zip(values, together, strict=True):
        assert torch.equal(quantise(row[None], dtype).view(torch.int8)[0], alone)


@DTYPES
def test_zeros_and_the_extremes_of_float32_stay_finite(dtype: torch.dtype) -> None:
    values = torch.zeros(4, 8)
    values[1, 2], values[2, 3], values[3] = 3e38, 1e-45, torch.linspace(-1e-38, 1e-38, 8)
    found = through(values, dtype)
    assert torch.equal(found[0], values[0]) and found.isfinite().all()
    assert found[1, 2] == pytest.approx(3e38, rel=0.01)
    assert through(-values, dtype)[1, 2] == -found[1, 2]


@DTYPES
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_read_as_nan_and_changes_no_other(dtype: torch.dtype, bad: float) -> None:
    values = torch.randn(3, 2, 8)
    before = through(values, dtype)
    values[1, 1, 4] = bad
    after = through(values, dtype)
    assert after[1, 1].isnan().all()
    after[1, 1] = before[1, 1]
    assert torch.equal(after, before)


@DTYPES
def test_a_bfloat16_result_is_the_rounded_float32_one(dtype: torch.dtype) -> None:
    values = torch.randn(40, 12)
    assert torch.equal(through(values, dtype, torch.bfloat16), through(values, dtype).bfloat16())

"""Rounding of weights: to the nearest, and with errors that cancel on inputs."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

import pytest
import torch
from torch import Tensor

from backend.config import RoundingScheme
from backend.quant.calibrate import FORMATS, round_weight, stored
from backend.quant.checkpoint import read_quantized
from tests.backend.quant.tensors import MemoryTensors

SCHEMES: Collection[RoundingScheme] = get_args(RoundingScheme)
WORST: dict[RoundingScheme, float] = {"int8": 0.01, "fp8": 0.04, "int4": 0.13}
GROUPS = {256: 128, 192: 64, 96: 32, 90: 90, 130: 130, 1: 1, 640: 128}


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("columns", GROUPS)
def test_values_are_the_nearest_and_read_back(scheme: RoundingScheme, columns: int) -> None:
    weight = matrix(9, columns)
    weight[3] = 0
    rounded = round_weight(weight, scheme)
    assert rounded.block == (1, GROUPS[columns] if scheme == "int4" else columns)
    assert torch.equal(rounded.dequantize()[3], torch.zeros(columns))
    assert (rounded.dequantize() - weight).norm() <= WORST[scheme] * weight.norm()
    read = read_quantized(MemoryTensors(stored("m.weight", rounded)), "m", (9, columns), FORMATS[scheme])
    assert read is not None and read.scheme == scheme
    assert torch.equal(read.dequantize(), rounded.dequantize())


def test_bfloat16_holds_weights_in_fp8_exactly() -> None:
    """Products in 16 bits then compute with what accuracy was measured for."""
    rounded = round_weight(matrix(50, 300), "fp8").dequantize()
    assert torch.equal(rounded.bfloat16().float(), rounded)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("columns", [192, 90])
def test_errors_cancel_on_inputs_like_those_seen(scheme: RoundingScheme, columns: int) -> None:
    mixed = matrix(columns, columns, 1)
    mixed[:3] *= 20  # a few directions dominate, as in real activations
    seen, others = matrix(1000, columns, 2) @ mixed, matrix(500, columns, 3) @ mixed
    weight = matrix(40, columns)

    def error(products: Tensor | None) -> float:
        rounded = round_weight(weight, scheme, products).dequantize()
        return float((others @ (rounded - weight).T).norm())

    assert error(seen.T @ seen) < 0.7 * error(None)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_inputs_that_are_never_seen_are_rounded_to_nearest(scheme: RoundingScheme) -> None:
    weight = matrix(20, 96)
    nearest = round_weight(weight, scheme).dequantize()
    assert torch.equal(round_weight(weight, scheme, torch.zeros(96, 96)).dequantize(), nearest)
    products = torch.zeros(96, 96)
    products[5, 5] = 1e30  # one input, once
    assert torch.equal(round_weight(weight, scheme, products).dequantize(), nearest)


def test_few_tokens_are_enough() -> None:
    x = matrix(2, 128)
    assert round_weight(matrix(20, 128), "int4", x.T @ x).dequantize().isfinite().all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_scales_follow_the_weight(scheme: RoundingScheme, size: float) -> None:
    weight = matrix(5, 64) * size
    assert (round_weight(weight, scheme).dequantize() / size - weight / size).norm() <= 3

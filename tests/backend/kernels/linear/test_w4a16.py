"""A row alone equals the row in company, and what no program owns is not read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backend.kernels.linear.w4a16 import DeviceInt4Weight
from tests.backend.kernels.triton_process import triton_process


def test_only_4_bits_in_groups_of_whole_half_units_fit() -> None:
    values = torch.randint(-8, 8, (4, 96), dtype=torch.int8)
    fits = DeviceInt4Weight.fits
    assert fits(values, None, 32) and fits(values, None, 96) and fits(values[:, :90], None, 90)
    assert not fits(values, None, 48) and not fits(values + 8, None, 32)
    assert not fits(values, torch.full((4, 3), 120, dtype=torch.int8), 32)


def rows_alone_and_beside_nan() -> None:
    from tests.backend.kernels.interpreted import widen_products
    from tests.backend.kernels.linear.cases import Shape, product
    from tests.backend.kernels.linear.company import check_company

    widen_products()
    for shape in (Shape(1, features=1024, is_symmetric=False), Shape(1, columns=33, features=90, group=90)):
        weight, dense, _ = product(shape)
        check_company(weight, shape.features)
        torch.testing.assert_close(weight.weight.double(), dense, rtol=1e-6, atol=1e-6)


def a_layer_of_int4() -> None:
    from dataclasses import replace

    from backend.kernels.experts import ExpertMatrices
    from backend.layers.linear import Linear
    from backend.quant.products import place
    from tests.backend.quant.test_schemes import weight

    parts = [replace(weight(6, 64, (1, 32), zeros=True, seed=seed), scheme="int4") for seed in (0, 1)]
    layout: tuple[Any, ...] = ("plain", torch.device("cpu"), torch.float32, torch.Tensor.contiguous)
    ready = place(parts, *layout)
    layer = Linear(ready, [torch.ones(6), torch.zeros(6)], "plain")
    assert isinstance(layer.multiply, DeviceInt4Weight)
    matrix, x = torch.cat([part.dequantize() for part in parts]), torch.randn(3, 64)
    bias = torch.cat([torch.ones(6), torch.zeros(6)])
    torch.testing.assert_close(layer(x), x @ matrix.T + bias, rtol=1e-4, atol=1e-4)
    layer.move_to(memory := ExpertMatrices(1, torch.float32), 0)
    assert torch.equal(memory.values[0], matrix)
    mixed = place([parts[0], torch.zeros(6, 64)], *layout)
    assert all(isinstance(each, torch.Tensor) for each in mixed)


@pytest.mark.timeout(300)
def test_in_the_interpreter() -> None:
    with triton_process(TRITON_INTERPRET="1") as process:
        process.submit(rows_alone_and_beside_nan).result()
        process.submit(a_layer_of_int4).result()

"""Layers of quantised weights: what has no product of its own is dequantised."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend.kernels.linear import PlainWeight, WeightLayout
from backend.kernels.linear.int8 import IS_AVAILABLE, Int8Weight
from backend.quant.products import dense, pack
from backend.quant.schemes import QuantizedWeight
from tests.backend.quant.test_schemes import weight


@pytest.mark.parametrize("layout", ["plain", "packed", "half"])
@pytest.mark.parametrize(
    "parts",
    [
        [weight(6, 16, (1, 4), zeros=True)],
        [weight(6, 16, (1, 4)), weight(4, 16, (1, 4), seed=1)],
        [weight(6, 16, (1, 4), order=True), weight(4, 16, (1, 4), order=True, seed=1)],
        [weight(6, 16, (1, 4)), torch.randn(4, 16, generator=torch.Generator().manual_seed(2))],
    ],
)
def test_parts_are_stacked_in_order(
    parts: list[torch.Tensor | QuantizedWeight], layout: WeightLayout
) -> None:
    matrix = torch.cat([dense(part) for part in parts])
    x, bias = torch.randn(3, 16), torch.randn(len(matrix))
    expected = x @ matrix.T + bias
    assert torch.allclose(pack(parts, bias, layout)(x), expected, atol=2e-2, rtol=2e-2)


def test_plain_layers_have_their_matrix() -> None:
    """Drafters compile it."""
    packed = pack([weight(6, 16, (1, 4))], None, "plain")
    assert isinstance(packed, PlainWeight)
    assert torch.equal(packed.weight, weight(6, 16, (1, 4)).dequantize())


def int8(rows: int, block: tuple[int, int]) -> QuantizedWeight:
    return replace(weight(rows, 16, block), scheme="int8")


@pytest.mark.skipif(not IS_AVAILABLE, reason="needs AVX-512 VNNI")
def test_int8_by_row_has_its_product() -> None:
    assert isinstance(pack([int8(6, (1, 16)), int8(3, (1, 16))], None, "half"), Int8Weight)
    for others in (
        [int8(6, (1, 8))],
        [int8(6, (2, 16))],
        [weight(6, 16, (1, 16))],
        [int8(6, (1, 16)), torch.ones(2, 16)],
    ):
        assert not isinstance(pack(others, None, "half"), Int8Weight)

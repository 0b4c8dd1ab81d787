"""Layers of quantised weights: what has no product of its own is dequantised."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend.kernels.linear import PlainWeight, WeightLayout, paired
from backend.kernels.linear.amx import TileWeight
from backend.kernels.linear.int4 import E2M1, Int4Weight
from backend.kernels.linear.int8 import IS_AVAILABLE, Int8Weight
from backend.kernels.linear.paired import LoopWeight
from backend.quant.products import dense, pack
from backend.quant.schemes import QuantizedWeight, WeightScheme
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
    # factors rounded to bfloat16 change a sum by a share of what was added, however small the sum is
    limit = 2**-7 * (x.abs() @ matrix.abs().T + bias.abs())
    assert ((pack(parts, bias, layout)(x) - expected).abs() <= limit).all()


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


@pytest.mark.skipif(not paired.is_available(), reason="needs AVX-512 BF16")
@pytest.mark.parametrize("scheme", ["int4", "mxfp4"])
def test_4_bits_by_group_have_their_product(scheme: WeightScheme) -> None:
    zeros = scheme == "int4"
    parts = [quantized(scheme, 6, (1, 32), zeros=zeros), quantized(scheme, 3, (1, 32), zeros=zeros)]
    packed = pack(parts, torch.ones(9), "bf16")
    assert isinstance(packed, Int4Weight)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    expected = x @ torch.cat([part.dequantize() for part in parts]).T + 1
    torch.testing.assert_close(packed(x), expected, rtol=1e-4, atol=1e-4)
    for others in ([quantized(scheme, 6, (2, 32))], [*parts, torch.ones(2, 64)]):
        assert not isinstance(pack(others, None, "bf16"), Int4Weight)
    assert isinstance(pack(parts, None, "plain"), PlainWeight)


def quantized(
    scheme: WeightScheme, rows: int, block: tuple[int, int], *, zeros: bool = False
) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(rows)
    codes = torch.randint(0, 16, (rows, 64), generator=generator)
    values = (E2M1[16 + codes] if scheme == "mxfp4" else codes - 8 * (not zeros)).to(torch.int8)
    scales = torch.rand(-(-rows // block[0]), 2, generator=generator).half().float()
    zero = torch.randint(0, 16, scales.shape, generator=generator, dtype=torch.int8) if zeros else None
    return QuantizedWeight(scheme, values, scales, block, zero)


@pytest.mark.skipif(not paired.is_available(), reason="needs AVX-512 BF16")
def test_dequantised_weights_are_rounded_to_what_the_processor_multiplies() -> None:
    assert isinstance(pack([weight(6, 16, (2, 4))], None, "bf16"), (LoopWeight, TileWeight))
    assert not isinstance(
        pack([weight(6, 16, (2, 4)), torch.full((1, 16), 0.1)], None, "bf16"), (LoopWeight, TileWeight)
    )

"""Small weights: fp32 products that give a row the same bits in any company, in the loop and in a library."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.linear import WeightLayout, available_layouts, pack
from backend.kernels.linear.packed import OnednnWeight
from backend.kernels.linear.small import SmallWeight, TiledWeight

SHAPES = [(1, 1), (8, 192), (33, 100), (64, 65), (300, 130), (64, 2560)]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("columns", "k"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("layout", ["packed", "half"])
def test_a_row_is_the_same_in_any_company(
    layout: WeightLayout, columns: int, k: int, *, with_bias: bool
) -> None:
    if layout not in available_layouts():
        pytest.skip("this build of torch has no such layout")
    generator = torch.Generator().manual_seed(columns)
    weight = torch.randn(columns, k, generator=generator).bfloat16().float()
    bias = torch.randn(columns, generator=generator) if with_bias else None
    multiply, x = pack(weight, bias, layout), torch.randn(40, k, generator=generator)
    assert isinstance(multiply, SmallWeight)
    whole = multiply(x)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(whole.double(), exact, rtol=1e-4, atol=1e-4)
    for count in range(41):
        found = multiply(x[:count])
        assert found.shape == (count, columns) and torch.equal(found, whole[:count])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_loop_multiplies(dtype: torch.dtype, *, with_bias: bool) -> None:
    weight, x = torch.randn(70, 50).to(dtype), torch.randn(9, 100)[:, ::2]
    bias = torch.randn(70) if with_bias else None
    found = TiledWeight(weight, bias)(x)
    torch.testing.assert_close(found, F.linear(x, weight.float(), bias), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif("packed" not in available_layouts(), reason="this build of torch has no such layout")
def test_a_library_with_other_bits_is_not_asked() -> None:
    class Other(OnednnWeight):
        def __call__(self, x: Tensor) -> Tensor:
            return super().__call__(x).nextafter(torch.tensor(torch.inf))

    weight = torch.randn(20, 30)
    found = SmallWeight(weight, None, Other)
    x = torch.randn(33, 30)
    assert torch.equal(found(x), TiledWeight(weight, None)(x))

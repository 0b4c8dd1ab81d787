"""Products in 8 bits: exact sums of rounded numbers, and rows that never depend on their company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.kernels.linear.int8 import IS_AVAILABLE, Int8Weight

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="needs AVX-512 VNNI")

SHAPES = [(64, 64), (1, 1), (65, 3), (130, 70), (64, 130)]


def weight(rows: int, columns: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    values = torch.randint(-128, 128, (rows, columns), generator=random, dtype=torch.int8)
    scales = torch.rand(rows, generator=random) * 0.01
    return values, scales, torch.randn(rows, generator=random)


def oracle(x: Tensor, values: Tensor, scales: Tensor, bias: Tensor) -> Tensor:
    """The same rounding in torch, with sums in whole numbers."""
    most = x.abs().amax(1, keepdim=True)
    rounded = torch.where(most > 0, x * (127 / most), 0.0).round().long()
    return (rounded @ values.long().T).double() * (most / 127).double() * scales.double() + bias.double()


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 13])
def test_equals_sums_of_whole_numbers(rows: int, columns: int, count: int) -> None:
    values, scales, bias = weight(rows, columns)
    x = torch.randn(count, columns, generator=torch.Generator().manual_seed(count))
    found = Int8Weight(values, scales, bias)(x)
    # An element halfway between two numbers may be rounded either way.
    step = x.abs().amax(1, keepdim=True).double() / 127 * scales.double() * 128
    assert ((found - oracle(x, values, scales, bias)).abs() <= step + 1e-4).all()
    assert torch.allclose(found.double(), oracle(x, values, scales, bias), rtol=1e-5, atol=1e-4)


def test_a_row_is_equal_in_any_company() -> None:
    values, scales, bias = weight(200, 90)
    product = Int8Weight(values, scales, bias)
    x = torch.randn(23, 90)
    x[1], x[2], x[3], x[4] = 0, x[2] * 1e30, x[3] * 1e-35, 1e-42
    x[5, 3], x[6, 89], x[7] = float("nan"), float("-inf"), float("nan")
    together = product(x)
    for row in range(len(x)):
        alone = product(x[row : row + 1])
        assert torch.equal(alone[0].nan_to_num(7), together[row].nan_to_num(7))
    assert together[5:8].isnan().all()
    assert together[:5].isfinite().all() and together[8:].isfinite().all()
    assert torch.equal(together[1], bias)
    for count in range(1, len(x)):
        assert torch.equal(product(x[8 : 8 + count]), together[8 : 8 + count])


def test_the_largest_sums_fit() -> None:
    values = torch.full((1, 1 << 16), -128, dtype=torch.int8)
    product = Int8Weight(values, torch.ones(1), None)
    for sign in (-1, 1):
        assert product(torch.full((1, 1 << 16), float(sign))).item() == -sign * 128 * (1 << 16)
    assert not Int8Weight.fits((1 << 16) + 1)


def test_serves_views_other_dtypes_and_no_rows() -> None:
    values, scales, _ = weight(70, 33)
    product = Int8Weight(values, scales, None)
    wide = torch.randn(8, 66)
    view = wide[::2, ::2]
    assert torch.equal(product(view), product(view.contiguous()))
    narrow = product(view.bfloat16())
    assert narrow.dtype is torch.bfloat16 and narrow.is_contiguous()
    assert torch.equal(narrow, product(view.bfloat16().float()).bfloat16())
    assert product(wide[:0, :33]).shape == (0, 70)


def test_the_error_is_that_of_rounding() -> None:
    exact, x = torch.randn(256, 512), torch.randn(9, 512)
    scales = exact.abs().amax(1) / 127
    values = (exact / scales[:, None]).round().to(torch.int8)
    expected = x.double() @ exact.double().T
    error = (Int8Weight(values, scales, None)(x).double() - expected).norm() / expected.norm()
    assert error < 0.02


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values, scales, bias = weight(1000, 300)
    product, x = Int8Weight(values, scales, bias), torch.randn(9, 300)
    found = []
    for threads in (1, 2, 5, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(product(x))
    assert all(torch.equal(each, found[0]) for each in found)

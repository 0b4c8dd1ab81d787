"""Products with 4 bits: exact weights, rounded inputs, and rows that never depend on their company."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from backend.kernels.linear import paired
from backend.kernels.linear.int4 import E2M1, Int4Weight, e2m1_codes

if not paired.is_available():  # the cases below are packed at import
    pytest.skip("this processor does not multiply bfloat16", allow_module_level=True)


@dataclass
class Case:
    """A weight and its product."""

    multiply: Int4Weight
    exact: Tensor  # [N, K] float64
    bias: Tensor


def case(
    shape: tuple[int, int], group: int, *, lowest: int = 0, zeros: bool = True, order: bool = False
) -> Case:
    random = torch.Generator().manual_seed(shape[0] + group)
    n, k = shape
    values = torch.randint(lowest, lowest + 16, shape, generator=random, dtype=torch.int8)
    values[0, 0] = lowest
    scales = torch.rand(n, -(-k // group), generator=random).half().float() * 2.0**-9
    zero = None
    if zeros:
        zero = torch.randint(lowest, lowest + 17, scales.shape, generator=random, dtype=torch.int8)
    columns = torch.randperm(k, generator=random) if order else None
    bias = torch.randn(n, generator=random)
    assert Int4Weight.fits(values, zero, group)
    differences = values.double()
    if zero is not None:
        differences -= zero.double().repeat_interleave(group, 1)[:, :k]
    exact = differences * scales.double().repeat_interleave(group, 1)[:, :k]
    if columns is not None:
        exact = torch.empty_like(exact).index_copy_(1, columns, exact)
    return Case(Int4Weight(values, scales, zero, group, bias, columns), exact, bias)


CASES = [
    case((1, 2), 2),
    case((64, 32), 32, lowest=-8, zeros=False),
    case((65, 96), 32, lowest=-8),
    case((130, 65), 65),
    case((70, 200), 64, order=True),
    case((64, 300), 128),
    case((66, 513), 256),
    case((60, 301), 301, zeros=False),
]


@pytest.fixture(params=[1, 3])
def _threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "_ONE_THREAD", 0)
    monkeypatch.setattr(paired.torch, "get_num_threads", lambda: request.param)


def inputs(case: Case, rows: int) -> Tensor:
    return torch.randn(rows, case.exact.shape[1], generator=torch.Generator().manual_seed(rows))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(tuple(case.exact.shape)))
def test_sums_are_those_of_rounded_inputs(case: Case) -> None:
    x = inputs(case, 14)
    exact = x.bfloat16().double() @ case.exact.T + case.bias.double()
    for count in range(15):
        torch.testing.assert_close(case.multiply(x[:count]).double(), exact[:count], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(tuple(case.exact.shape)))
def test_a_row_is_the_same_in_any_company_and_on_any_number_of_threads(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = inputs(case, 13)
    whole = case.multiply(x)
    monkeypatch.setattr(paired, "_ONE_THREAD", 0)
    for threads in (1, 2, 5):
        monkeypatch.setattr(paired.torch, "get_num_threads", lambda threads=threads: threads)
        for count in range(1, 14):
            assert torch.equal(case.multiply(x[13 - count :]), whole[13 - count :])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    case = CASES[3]
    x = inputs(case, 9)
    before = case.multiply(x)
    x[4, 64] = value
    found = case.multiply(x)
    changed = case.exact[:, 64] != 0
    assert changed.any() and not found[4, changed].isfinite().any()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(found[others], before[others])


def test_e2m1_with_scales_that_are_powers_of_two() -> None:
    values = E2M1[16:].to(torch.int8).repeat(70, 4)
    scales = 2.0 ** torch.randint(-20, 5, (70, 2), generator=torch.Generator().manual_seed(3))
    codes = e2m1_codes(values)
    assert Int4Weight.fits(codes, None, 32)
    multiply = Int4Weight(codes, scales, None, 32, None, numbers=E2M1)
    exact = values.float() * scales.repeat_interleave(32, 1)
    assert torch.equal(multiply(torch.eye(64)), exact.T)  # also those of 2^-20 beside 2^4


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_scales_of_any_size(size: float) -> None:
    values = torch.arange(-8, 8, dtype=torch.int8).repeat(64, 2)
    multiply = Int4Weight(values, torch.full((64, 1), size), None, 32, None)
    expected = values.float().T * size
    torch.testing.assert_close(multiply(torch.eye(32)), expected, rtol=1e-3, atol=0)


def test_a_weight_takes_at_most_0_6_bytes() -> None:
    for group in (32, 128):
        values = torch.ones(256, 1024, dtype=torch.int8)
        scales = torch.ones(256, 1024 // group)
        multiply = Int4Weight(values, scales, scales.to(torch.int8), group, None)
        assert sum(tensor.nbytes for tensor in multiply._tensors) <= 0.6 * values.numel()


def test_what_a_tile_or_the_table_cannot_hold_does_not_fit() -> None:
    values = torch.arange(16, dtype=torch.int8).repeat(4, 40)

    def fits(values: Tensor, zero: int = 3, group: int = 128) -> bool:
        return Int4Weight.fits(values, torch.full((4, -(-640 // group)), zero, dtype=torch.int8), group)

    assert fits(values) and fits(values - 8) and fits(values, 16) and fits(values, 0)
    assert not fits(values - 7) and not fits(values - 9) and not fits(values + 1)
    assert not fits(values, 17) and not fits(values, -1) and not fits(values - 8, 9)
    assert fits(values, group=640) and fits(values, group=256) and fits(values, group=6)
    assert not fits(values, group=5) and not fits(values, group=160)


def test_a_processor_without_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "is_available", lambda: False)
    assert not Int4Weight.fits(torch.zeros(4, 128, dtype=torch.int8), None, 128)

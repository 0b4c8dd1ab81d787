"""The loop of bfloat16 products: exact sums of rounded inputs, whatever is computed beside a row."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from backend.kernels.linear import amx, pack, paired
from backend.kernels.linear.paired import LoopWeight

pytestmark = pytest.mark.skipif(not paired.is_available(), reason="this processor does not multiply bfloat16")

SHAPES = [(1, 1), (64, 2), (65, 63), (130, 96), (300, 257)]


@pytest.fixture
def random() -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(7)
    return lambda *shape: torch.randn(shape, generator=generator)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_sums_are_those_of_rounded_inputs(
    rows: int, columns: int, *, with_bias: bool, random: Callable[..., Tensor]
) -> None:
    weight, bias, x = random(rows, columns).bfloat16(), random(rows), random(14, columns)
    multiply = LoopWeight(weight, bias if with_bias else None)
    exact = x.bfloat16().double() @ weight.double().T
    if with_bias:
        exact += bias.double()
    for count in range(15):
        found = multiply(x[:count])
        assert found.shape == (count, rows) and found.is_contiguous()
        torch.testing.assert_close(found.double(), exact[:count], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_a_row_is_the_same_in_any_company_and_on_any_number_of_threads(
    rows: int, columns: int, random: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply, x = LoopWeight(random(rows, columns), random(rows)), random(13, columns)
    whole = multiply(x)
    monkeypatch.setattr(paired, "_ONE_THREAD", 0)
    before = torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        for count in range(1, 14):
            for first in (0, 13 - count):
                assert torch.equal(multiply(x[first : first + count]), whole[first : first + count])
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("columns", [64, 63])
def test_what_is_not_finite_stays_in_its_row(
    value: float, columns: int, random: Callable[..., Tensor]
) -> None:
    multiply, x = LoopWeight(random(70, columns), None), random(9, columns)
    before = multiply(x)
    x[4, columns - 1] = value
    found = multiply(x)
    assert not found[4].isfinite().any()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(found[others], before[others])


def test_x_may_be_a_view(random: Callable[..., Tensor]) -> None:
    multiply, wide = LoopWeight(random(64, 32), None), random(40, 9)
    for x in (wide[:32].T, wide.T[::2, 8:], wide[:1, :1].expand(5, 32)):
        assert torch.equal(multiply(x), multiply(x.contiguous()))


def test_elements_beside_a_partial_block_are_not_written(
    random: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = torch.full((8, 70), 9.0)
    monkeypatch.setattr(paired.torch, "empty", lambda rows, columns: room.view(-1)[: rows * columns])
    LoopWeight(random(70, 6), None)(random(7, 6))
    assert (room[7] == 9).all() and (room[:7] != 9).all()


def test_rounding_to_nearest_even_and_denormal_numbers(random: Callable[..., Tensor]) -> None:
    multiply = LoopWeight(torch.eye(64), None)
    x = random(3, 64)
    x[0, 0], x[0, 1] = 1 + 2**-8, 1 + 3 * 2**-8  # halves between neighbours
    assert torch.equal(multiply(x), x.bfloat16().float())
    assert multiply(torch.full((1, 64), 1e-39)).eq(0).all()


def test_weights_that_bfloat16_cannot_represent_stay_fp16(
    random: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amx, "is_available", lambda: False)
    weight = random(2000, 8).half().float()
    assert isinstance(pack(weight.bfloat16().float(), None, "bf16"), LoopWeight)
    weight[:-1] = weight[:-1].bfloat16()
    x = random(20, 8)
    multiply = pack(weight, None, "bf16")
    assert not isinstance(multiply, LoopWeight)
    torch.testing.assert_close(multiply(x), x @ weight.T, rtol=1e-6, atol=1e-6)


def test_a_processor_without_the_instruction_keeps_fp16() -> None:
    program = (
        "import torch; from backend.kernels.linear import paired, pack; "
        "print(paired.is_available(), type(pack(torch.eye(600), None, 'bf16')).__name__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["False", "HalfWeight"]

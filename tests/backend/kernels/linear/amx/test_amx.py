"""Products in tiles: exact sums of rounded inputs, whatever is computed beside a row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.kernels.linear import amx, pack
from backend.kernels.linear.amx import TileWeight
from backend.kernels.linear.int8 import Int8Weight

pytestmark = pytest.mark.skipif(not amx.is_available(), reason="this processor has no AMX")

SHAPES = [(1, 1), (32, 32), (65, 63), (130, 96), (300, 257)]
COUNTS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 40]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_sums_are_those_of_rounded_inputs(rows: int, columns: int, *, with_bias: bool) -> None:
    weight, bias, x = random(rows, columns).bfloat16(), random(rows), random(40, columns)
    multiply = TileWeight(weight, bias if with_bias else None)
    exact = x.bfloat16().double() @ weight.double().T
    if with_bias:
        exact += bias.double()
    whole = multiply(x)
    for count in COUNTS:
        found = multiply(x[:count])
        assert found.shape == (count, rows) and found.is_contiguous()
        torch.testing.assert_close(found.double(), exact[:count], rtol=1e-5, atol=1e-5)
        assert torch.equal(found, whole[:count])
        assert torch.equal(multiply(x[40 - count :]), whole[40 - count :])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_no_number_spoils_no_other(value: float) -> None:
    multiply, x = TileWeight(random(70, 33), None), random(20, 33)
    clean = multiply(x)
    x[3, 32] = value
    found = multiply(x)
    assert not found[3].isfinite().any()
    assert torch.equal(found[:3], clean[:3]) and torch.equal(found[4:], clean[4:])


def test_nothing_is_written_beside_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    room = torch.full((9, 96), 9.0)
    monkeypatch.setattr(
        amx.torch, "empty", lambda rows, columns: room.view(-1)[: rows * columns].view(rows, -1)
    )
    TileWeight(random(70, 6), None)(random(7, 6))
    assert (room[7:] == 9).all() and (room[:7] != 9).any()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_int8_is_what_other_instructions_compute(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    scales, bias, x = random(rows).abs(), random(rows), random(40, columns)
    in_tiles = Int8Weight(values, scales, bias)
    monkeypatch.setattr(amx, "is_available", lambda: False)
    otherwise = Int8Weight(values, scales, bias)
    whole = in_tiles(x)
    for count in COUNTS:
        assert torch.equal(in_tiles(x[:count]), whole[:count])
        torch.testing.assert_close(whole[:count], otherwise(x[:count]), rtol=1e-5, atol=1e-5)


def test_it_is_chosen_for_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(64, 32).bfloat16()
    assert isinstance(pack(weight, None, "bf16"), TileWeight)
    assert not isinstance(pack(random(64, 32), None, "bf16"), TileWeight)  # bfloat16 does not represent it
    monkeypatch.setattr(amx, "is_available", lambda: False)
    assert not isinstance(pack(weight, None, "bf16"), TileWeight)

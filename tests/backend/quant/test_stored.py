"""Formats are found by the shapes of tensors; what fits none is refused by name."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from backend.config import WeightFormat
from backend.errors import CheckpointError
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import StoredModule, find_format, unpack
from tests.backend.quant.tensors import stored

INT4 = WeightFormat("int4", 4, (1, 4))
N, K = 3, 8


def shapes_of(_: WeightFormat, blocks: tuple[int, ...]) -> Mapping[str, tuple[int, ...]]:
    return {".values": (N, K), ".scales": blocks}


def module(*formats: WeightFormat, scales: Tensor, **others: Tensor) -> StoredModule:
    tensors = {".values": torch.zeros(N, K, dtype=torch.uint8), ".scales": scales}
    tensors |= {f".{name}": tensor for name, tensor in others.items()}
    return find_format(stored("m", tensors), "m", (N, K), formats, shapes_of)


def test_the_format_whose_shapes_fit_is_chosen() -> None:
    pairs = WeightFormat("int4", 4, (1, 2))
    assert module(pairs, INT4, scales=torch.ones(N, 2)).format is INT4
    assert module(pairs, INT4, scales=torch.ones(N, 4)).format is pairs


@pytest.mark.parametrize(
    ("formats", "scales", "problem"),
    [
        ([INT4], torch.ones(N, 3), "'m.scales' has shape [3, 3], config.json implies [3, 2]"),
        ([], torch.ones(N, 2), "'m' is quantised, but config.json describes no"),
        ([WeightFormat("int4", 4, (1, 5))], torch.ones(N, 2), "'m' has 8 columns, which groups of 5"),
    ],
)
def test_what_fits_no_format_is_refused(formats: list[WeightFormat], scales: Tensor, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        module(*formats, scales=scales)
    assert problem in str(caught.value)


def test_a_group_may_be_larger_than_the_weight() -> None:
    wide = module(WeightFormat("int4", 4, (1, 128)), scales=torch.ones(N, 1))
    values = torch.zeros(N, K, dtype=torch.uint8)
    assert wide.integers(values, wide.scales(".scales"), None).block == (1, K)


@pytest.mark.parametrize("bad", [-0.5, float("nan"), float("inf"), 3e38])
def test_scales_that_no_quantiser_writes_are_refused(bad: float) -> None:
    scales = torch.ones(N, 2)
    scales[1, 1] = bad
    with pytest.raises(CheckpointError, match=r"'m\.scales' holds scales"):
        module(INT4, scales=scales).scales(".scales")


def ordered(groups: list[int]) -> QuantizedWeight:
    found = module(INT4, scales=torch.ones(N, 2), order=torch.tensor(groups, dtype=torch.int32))
    values = torch.arange(8, dtype=torch.uint8).repeat(N, 1)
    return found.integers(values, found.scales(".scales"), None, ".order")


def test_columns_are_brought_into_the_order_of_their_groups() -> None:
    found = ordered([1, 0, 0, 1, 1, 0, 1, 0])
    assert found.order is not None
    assert found.order.tolist() == [1, 2, 5, 7, 0, 3, 4, 6]
    assert torch.equal(found.dequantize(), (torch.arange(8.0) - 8).repeat(N, 1))


@pytest.mark.parametrize("groups", [[0, 0, 0, 0, 1, 1, 1, 1], [-1] * 8])
def test_columns_in_order_need_none(groups: list[int]) -> None:
    assert ordered(groups).order is None


@pytest.mark.parametrize("groups", [[0] * 8, [0, 0, 0, 0, 1, 1, 1, 2], [0, 0, 0, 0, -1, 1, 1, 1], [0, 1]])
def test_groups_of_other_sizes_are_refused(groups: list[int]) -> None:
    with pytest.raises(CheckpointError, match=r"'m\.order' does not give each group its 4 columns"):
        ordered(groups)


def test_words_hold_their_lowest_bits_first() -> None:
    words = torch.tensor([[0x76543210, -0x01234568]], dtype=torch.int32)  # the second is 0xFEDCBA98
    assert unpack(words, 4).tolist() == [list(range(16))]
    assert unpack(words, 8).tolist() == [[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]]

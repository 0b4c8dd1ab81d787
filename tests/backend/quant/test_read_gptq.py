"""GPTQ's layout, packed here value by value as its definition says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from backend.config import QuantizationConfig, WeightFormat
from backend.errors import CheckpointError
from backend.quant.read_gptq import read_gptq
from backend.quant.schemes import QuantizedWeight
from tests.backend.quant.tensors import stored

N, K, GROUP = 16, 32, 8


def words(rows: list[list[int]], bits: int) -> Tensor:
    """Rows of numbers → rows of int32, the first number in the lowest bits."""
    per_word = 32 // bits
    packed = [
        [
            sum(value << (bits * i) for i, value in enumerate(row[start : start + per_word]))
            for start in range(0, len(row), per_word)
        ]
        for row in rows
    ]
    return torch.tensor(packed, dtype=torch.int64).to(torch.int32)


class Module:
    """Random integers, zero points and scales, and what they stand for."""

    def __init__(self, bits: int, groups: list[int], offset: int, zeros: list[int] | None = None) -> None:
        random = torch.Generator().manual_seed(bits)
        count = max(groups) + 1
        values = torch.randint(0, 1 << bits, (N, K), generator=random)
        chosen = torch.randint(0, 1 << bits, (count, N), generator=random)
        if zeros is not None:
            chosen = torch.tensor(zeros).repeat(count, 1)
        scales = torch.rand(count, N, generator=random).half() + 0.01
        stored_zeros = (chosen - offset) % (1 << bits)
        self.tensors = {
            ".qweight": words(values.tolist(), bits).T.contiguous(),
            ".qzeros": words(stored_zeros.tolist(), bits),
            ".scales": scales,
            ".g_idx": torch.tensor(groups, dtype=torch.int32),
        }
        index = torch.tensor(groups)
        self.weight = (values - chosen[index].T) * scales.float()[index].T
        self.format = WeightFormat("int4" if bits == 4 else "w8a16", bits, (1, GROUP), is_symmetric=False)
        self.offset = offset

    def config(self, *, is_reordered: bool = False) -> QuantizationConfig:
        return QuantizationConfig("gptq" if self.offset else "gptq_v2", (self.format,), is_reordered)

    def read(self) -> QuantizedWeight:
        found = read_gptq(stored("m", self.tensors), "m", (N, K), self.config())
        assert found is not None
        return found


IN_ORDER = [column // GROUP for column in range(K)]
SHUFFLED = [IN_ORDER[i] for i in torch.randperm(K, generator=torch.Generator().manual_seed(3)).tolist()]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("groups", [IN_ORDER, SHUFFLED, [0] * K])
@pytest.mark.parametrize("offset", [0, 1])
def test_values_zeros_scales_and_order(bits: int, groups: list[int], offset: int) -> None:
    module = Module(bits, groups, offset)
    if max(groups) == 0:
        module.format = WeightFormat(module.format.scheme, bits, (1, 0), is_symmetric=False)
    found = module.read()
    assert torch.equal(found.dequantize(), module.weight)
    assert (found.order is None) == (groups != SHUFFLED)


def test_symmetric_weights_have_no_zeros() -> None:
    module = Module(4, IN_ORDER, 1, [8] * N)
    assert module.read().zeros is None
    assert torch.equal(module.read().dequantize(), module.weight)


def test_version_1_stores_a_zero_point_of_zero_as_the_largest_number() -> None:
    module = Module(4, IN_ORDER, 1, [0, 15] * (N // 2))
    assert module.tensors[".qzeros"][0, 0] & 15 == 15
    assert torch.equal(module.read().dequantize(), module.weight)


def test_groups_are_in_order_without_their_tensor() -> None:
    module = Module(4, IN_ORDER, 1)
    del module.tensors[".g_idx"]
    assert torch.equal(module.read().dequantize(), module.weight)


def test_another_order_needs_its_tensor() -> None:
    module = Module(4, IN_ORDER, 1)
    config = module.config(is_reordered=True)
    assert read_gptq(stored("m", module.tensors), "m", (N, K), config) is not None
    del module.tensors[".g_idx"]
    with pytest.raises(CheckpointError, match=r"m\.g_idx.*desc_act"):
        read_gptq(stored("m", module.tensors), "m", (N, K), config)


def test_a_module_with_a_float_weight_is_not_quantised() -> None:
    assert (
        read_gptq(stored("m", {".weight": torch.ones(N, K)}), "m", (N, K), QuantizationConfig("gptq", ()))
        is None
    )


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        (".qzeros", None, "'m.qzeros' is missing"),
        (".scales", None, "'m.scales' is missing"),
        (".qweight", lambda found: found[1:], "'m.qweight' has shape [3, 16]"),
        (".qweight", lambda found: found.to(torch.int64), "'m.qweight' is torch.int64"),
        (".scales", lambda found: found[:, 1:], "'m.scales' has shape [4, 15]"),
        (".scales", lambda found: -found, "'m.scales' holds scales that are negative"),
        (".scales", lambda found: found * float("nan"), "'m.scales' holds"),
        (".g_idx", lambda found: found + 1, "'m.g_idx' does not give each group its 8 columns"),
        (".g_idx", lambda found: found - 1, "'m.g_idx' does not"),
        (".g_idx", lambda found: found[1:], "'m.g_idx' does not"),
        (".g_idx", lambda found: found[None], "'m.g_idx' does not"),
        (".g_idx", lambda found: found[:0], "'m.g_idx' does not"),
        (".g_idx", lambda found: 0 * found[:2] - 1, "'m.g_idx' does not"),
        (".g_idx", lambda found: found.float(), "'m.g_idx' is torch.float32"),
    ],
)
def test_broken_tensors_are_refused_by_name(
    name: str, change: Callable[[Tensor], Tensor] | None, problem: str
) -> None:
    module = Module(4, IN_ORDER, 1)
    tensor = module.tensors.pop(name)
    if change is not None:
        module.tensors[name] = change(tensor).contiguous()
    with pytest.raises(CheckpointError) as caught:
        module.read()
    assert problem in str(caught.value)

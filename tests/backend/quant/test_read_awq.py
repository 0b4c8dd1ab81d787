"""AWQ's layout, packed here nibble by nibble as its definition says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.config import WeightFormat
from backend.errors import CheckpointError
from backend.quant.read_awq import read_awq
from tests.backend.quant.tensors import stored

N, K, GROUP = 24, 32, 16
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The value that nibble i holds."""
FORMAT = WeightFormat("int4", 4, (1, GROUP), is_symmetric=False)


def words(rows: list[list[int]]) -> Tensor:
    packed = [
        [sum(row[start + ORDER[i]] << (4 * i) for i in range(8)) for start in range(0, len(row), 8)]
        for row in rows
    ]
    return torch.tensor(packed, dtype=torch.int64).to(torch.int32)


def module() -> tuple[dict[str, Tensor], Tensor]:
    """Tensors of a random weight, and the weight [N, K]."""
    random = torch.Generator().manual_seed(0)
    values = torch.randint(0, 16, (K, N), generator=random)
    zeros = torch.randint(0, 16, (K // GROUP, N), generator=random)
    scales = torch.rand(K // GROUP, N, generator=random).half() + 0.01
    tensors = {".qweight": words(values.tolist()), ".qzeros": words(zeros.tolist()), ".scales": scales}
    group = torch.arange(K) // GROUP
    return tensors, ((values - zeros[group]) * scales.float()[group]).T


def test_values_zeros_and_scales() -> None:
    tensors, weight = module()
    found = read_awq(stored("m", tensors), "m", (N, K), [FORMAT])
    assert found is not None
    assert torch.equal(found.dequantize(), weight)
    assert (found.scheme, found.block, found.order) == ("int4", (1, GROUP), None)


def test_a_module_with_a_float_weight_is_not_quantised() -> None:
    assert read_awq(stored("m", {".weight": torch.ones(N, K)}), "m", (N, K), [FORMAT]) is None


@pytest.mark.parametrize("name", [".qzeros", ".scales"])
def test_missing_tensors_are_refused_by_name(name: str) -> None:
    tensors, _ = module()
    del tensors[name]
    with pytest.raises(CheckpointError, match=rf"'m\{name}' is missing"):
        read_awq(stored("m", tensors), "m", (N, K), [FORMAT])


def test_groups_that_do_not_divide_the_columns_are_refused() -> None:
    tensors, _ = module()
    with pytest.raises(CheckpointError, match="32 columns, which groups of 20 do not divide"):
        read_awq(stored("m", tensors), "m", (N, K), [WeightFormat("int4", 4, (1, 20), is_symmetric=False)])

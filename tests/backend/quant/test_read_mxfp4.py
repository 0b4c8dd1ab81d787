"""Blocks of E2M1 with powers of two: what transformers decodes, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from backend.config import WeightFormat
from backend.errors import CheckpointError
from backend.quant.read_mxfp4 import read_mxfp4
from tests.backend.quant.tensors import stored

N, K = 6, 96
FORMATS = [WeightFormat("mxfp4", 4, (1, 32))]


def made() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (N, K // 32, 16), generator=random, dtype=torch.uint8)
    scales = torch.randint(0, 237, (N, K // 32), generator=random, dtype=torch.uint8)
    return {"_blocks": blocks, "_scales": scales}


def test_values_are_those_of_transformers() -> None:
    tensors = made()
    blocks, scales = (tensors[name][None] for name in ("_blocks", "_scales"))
    (theirs,) = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    found = read_mxfp4(stored("m", tensors), "m", (N, K), FORMATS)
    assert found is not None
    assert torch.equal(found.dequantize().T, theirs)
    assert torch.equal(found[1::2].dequantize().T, theirs[:, 1::2])


def test_a_module_without_blocks_is_not_quantised() -> None:
    assert read_mxfp4(stored("m", {}), "m", (N, K), FORMATS) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"_scales": torch.full((N, K // 32), 255, dtype=torch.uint8)}, "'m_scales' holds scales that are"),
        ({"_scales": torch.full((N, K // 32), 240, dtype=torch.uint8)}, "'m_scales' holds scales that are"),
        ({"_scales": torch.zeros(N, 2, dtype=torch.uint8)}, r"'m_scales' has shape \[6, 2\], .* \[6, 3\]"),
        ({"_scales": torch.zeros(N, K // 32, dtype=torch.int32)}, "'m_scales' is torch.int32"),
        ({"_blocks": torch.zeros(N, 3, 8, dtype=torch.uint8)}, r"'m_blocks' has shape \[6, 3, 8\], .* 16\]"),
        ({"_blocks": torch.zeros(N, 3, 16, dtype=torch.int8)}, "'m_blocks' is torch.int8"),
    ],
)
def test_broken_tensors_are_refused_by_name(changes: dict[str, Tensor], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read_mxfp4(stored("m", made() | changes), "m", (N, K), FORMATS)


def test_scales_that_are_missing_are_named() -> None:
    tensors = made()
    del tensors["_scales"]
    with pytest.raises(CheckpointError, match="'m_scales' is missing"):
        read_mxfp4(stored("m", tensors), "m", (N, K), FORMATS)

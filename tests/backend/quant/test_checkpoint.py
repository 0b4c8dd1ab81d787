"""Each method's weights go to its reader."""

from __future__ import annotations

import torch

from backend.config import QuantizationConfig, WeightFormat
from backend.quant.checkpoint import read_quantized
from tests.backend.quant.tensors import stored


def test_compressed_tensors() -> None:
    tensors = {".weight": torch.ones(2, 4, dtype=torch.int8), ".weight_scale": torch.full((2, 1), 0.5)}
    config = QuantizationConfig("compressed-tensors", (WeightFormat("int8", 8, (1, 0), is_packed=False),))
    found = read_quantized(stored("m", tensors), "m", (2, 4), config)
    assert found is not None
    assert found.dequantize().tolist() == [[0.5] * 4] * 2

"""Reads quantised weights from a checkpoint, in whichever format its config.json names."""

from __future__ import annotations

from backend.config import QuantizationConfig
from backend.quant.read_compressed import read_compressed
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import Tensors


def read_quantized(
    tensors: Tensors, module: str, shape: tuple[int, int], config: QuantizationConfig
) -> QuantizedWeight | None:
    """The weight [N, K] of a module; None where it is stored in floats. Raises CheckpointError."""
    return read_compressed(tensors, module, shape, config.formats)

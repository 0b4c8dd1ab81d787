"""Reads quantised weights from a checkpoint, in whichever format its config.json names."""

from __future__ import annotations

from backend.config import QuantizationConfig
from backend.quant.read_awq import read_awq
from backend.quant.read_compressed import read_compressed
from backend.quant.read_gptq import read_gptq
from backend.quant.read_mxfp4 import read_mxfp4
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import Tensors


def read_quantized(
    tensors: Tensors, module: str, shape: tuple[int, int], config: QuantizationConfig
) -> QuantizedWeight | None:
    """The weight [N, K] of a module; None where it is stored in floats. Raises CheckpointError."""
    match config.method:
        case "gptq" | "gptq_v2":
            return read_gptq(tensors, module, shape, config)
        case "awq":
            return read_awq(tensors, module, shape, config.formats)
        case "mxfp4":
            return read_mxfp4(tensors, module, shape, config.formats)
        case "compressed-tensors" | "fp8":
            return read_compressed(tensors, module, shape, config.formats)

"""Weights as compressed-tensors stores them, and as FP8 checkpoints do, which are one of its formats."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from backend.config import WeightFormat
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import Shape, StoredModule, Tensors, find_format

_PACKED, _ZERO = ".weight_packed", ".weight_zero_point"
_SCALE, _INVERSE = ".weight_scale", ".weight_scale_inv"


def read_compressed(
    tensors: Tensors, module: str, shape: tuple[int, int], formats: Collection[WeightFormat]
) -> QuantizedWeight | None:
    """The weight [N, K] of a module; None where it is not quantised. Raises CheckpointError."""
    scale = _INVERSE if tensors.shape(module + _INVERSE) else _SCALE  # it multiplies, whatever its name says
    if tensors.shape(module + scale) is None and tensors.shape(module + _PACKED) is None:
        return None

    def shapes_of(each: WeightFormat, blocks: Shape) -> Mapping[str, Shape]:
        shapes: dict[str, Shape] = {".weight": shape, scale: blocks}
        if not each.is_symmetric:
            shapes[_ZERO] = blocks
        return shapes

    stored = find_format(tensors, module, shape, formats, shapes_of)
    return _integers(stored, scale)


def _integers(stored: StoredModule, scale: str) -> QuantizedWeight:
    zeros = None if stored.format.is_symmetric else stored.read(_ZERO, torch.int8)
    return stored.record(stored.read(".weight", torch.int8), stored.scales(scale), zeros)

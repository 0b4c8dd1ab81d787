"""Weights as OCP's MX format has them, four bits with a power of two for 32 columns, in tensors of blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from backend.config import WeightFormat
from backend.quant.read_compressed import e2m1
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import Shape, Tensors, find_format

_BLOCKS, _SCALES = "_blocks", "_scales"


def read_mxfp4(
    tensors: Tensors, module: str, shape: tuple[int, int], formats: Collection[WeightFormat]
) -> QuantizedWeight | None:
    """The weight [N, K] of a module; None where it is not quantised. Raises CheckpointError."""
    if tensors.shape(module + _BLOCKS) is None:
        return None
    n, k = shape

    def shapes_of(each: WeightFormat, blocks: Shape) -> Mapping[str, Shape]:
        width = each.block[1]
        return {_BLOCKS: (n, blocks[1], min(width, k) // 2), _SCALES: blocks}

    stored = find_format(tensors, module, shape, formats, shapes_of)
    values = e2m1(stored.read(_BLOCKS, torch.uint8).flatten(1))
    return stored.record(values, stored.scales(_SCALES) / 2)

"""Weights as AutoAWQ's GEMM version stores them: 4 bits packed along N, the nibbles of a word interleaved."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from backend.config import WeightFormat
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import Shape, StoredModule, Tensors, find_format, num_words, unpack

_NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]
"""The nibble that holds each of the eight values of a word."""


def read_awq(
    tensors: Tensors, module: str, shape: tuple[int, int], formats: Collection[WeightFormat]
) -> QuantizedWeight | None:
    """The weight [N, K] of a module; None where it is not quantised. Raises CheckpointError."""
    if tensors.shape(module + ".qweight") is None:
        return None
    n, k = shape

    def shapes_of(each: WeightFormat, blocks: Shape) -> Mapping[str, Shape]:
        width, groups = num_words(n, each), blocks[1]
        return {".qweight": (k, width), ".qzeros": (groups, width), ".scales": (groups, n)}

    stored = find_format(tensors, module, shape, formats, shapes_of)
    values, zeros = _rows(stored, ".qweight"), _rows(stored, ".qzeros")
    return stored.integers(values, stored.scales(".scales").T, zeros)


def _rows(stored: StoredModule, ending: str) -> torch.Tensor:
    """[R, W] words → [N, R] values."""
    nibbles = unpack(stored.read(ending, torch.int32), 4)
    return nibbles.view(len(nibbles), -1, 8)[..., _NIBBLES].flatten(1)[:, : stored.shape[0]].T

"""Weights as GPTQ's tools store them: packed along K, so that a column of the tensors is a row of W."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from backend.config import QuantizationConfig, WeightFormat
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import Shape, Tensors, find_format, num_words, unpack


def read_gptq(
    tensors: Tensors, module: str, shape: tuple[int, int], config: QuantizationConfig
) -> QuantizedWeight | None:
    """The weight [N, K] of a module; None where it is not quantised. Raises CheckpointError."""
    if tensors.shape(module + ".qweight") is None:
        return None
    n, k = shape

    def shapes_of(each: WeightFormat, blocks: Shape) -> Mapping[str, Shape]:
        groups = blocks[1]
        return {
            ".qweight": (num_words(k, each), n),
            ".qzeros": (groups, num_words(n, each)),
            ".scales": (groups, n),
        }

    stored = find_format(tensors, module, shape, config.formats, shapes_of)
    if config.is_reordered and tensors.shape(module + ".g_idx") is None:
        raise stored.error(".g_idx", "is missing, but `desc_act` says that columns are in another order")
    bits = stored.format.bits
    values = unpack(stored.read(".qweight", torch.int32).T, bits)[:, :k]
    # Version 1 stores zero points minus 1, 0 as the largest number.
    zeros = unpack(stored.read(".qzeros", torch.int32), bits)[:, :n].T + (config.method == "gptq")
    return stored.integers(values, stored.scales(".scales").T, zeros & ((1 << bits) - 1), ".g_idx")

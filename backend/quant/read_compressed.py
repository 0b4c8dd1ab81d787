"""Weights as compressed-tensors stores them, and as FP8 checkpoints do, whose layout is one of those."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from backend.config import WeightFormat
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import Shape, StoredModule, Tensors, find_format, num_words, unpack

_WEIGHT, _PACKED, _ZERO = ".weight", ".weight_packed", ".weight_zero_point"
_SCALE, _INVERSE = ".weight_scale", ".weight_scale_inv"

_DOUBLED_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def read_compressed(
    tensors: Tensors, module: str, shape: tuple[int, int], formats: Collection[WeightFormat]
) -> QuantizedWeight | None:
    """The weight [N, K] of a module; None where it is not quantised. Raises CheckpointError."""
    scale = _INVERSE if tensors.shape(module + _INVERSE) else _SCALE  # it multiplies, whatever its name says
    if tensors.shape(module + scale) is None and tensors.shape(module + _PACKED) is None:
        return None
    n, k = shape

    def shapes_of(each: WeightFormat, blocks: Shape) -> Mapping[str, Shape]:
        zeros = {} if each.is_symmetric else {_ZERO: (num_words(n, each), blocks[1])}
        if not each.is_packed:
            return {_WEIGHT: shape, scale: blocks} | dict.fromkeys(zeros, blocks)
        width = k // 2 if each.scheme == "mxfp4" else num_words(k, each)
        return {_PACKED: (n, width), scale: blocks, **zeros}

    stored = find_format(tensors, module, shape, formats, shapes_of)
    if stored.format.scheme == "mxfp4":
        return stored.record(e2m1(stored.read(_PACKED, torch.uint8)), stored.scales(scale) / 2)
    if stored.format.scheme == "fp8":
        return stored.record(_fp8(stored), stored.scales(scale))
    return _packed_integers(stored) if stored.format.is_packed else _integers(stored)


def e2m1(packed: Tensor) -> Tensor:
    """Twice the values of E2M1 codes, lowest bits first: [R, W] uint8 → [R, 2 W] int8."""
    return torch.tensor(_DOUBLED_E2M1, dtype=torch.int8)[unpack(packed, 4).int()]


def _fp8(stored: StoredModule) -> Tensor:
    values = stored.read(_WEIGHT, torch.float8_e4m3fn)
    if (values.view(torch.uint8) & 0x7F == 0x7F).any():
        raise stored.error(_WEIGHT, "holds values that are not numbers")
    return values


def _integers(stored: StoredModule) -> QuantizedWeight:
    values = stored.read(_WEIGHT, torch.int8)
    zeros = None if stored.format.is_symmetric else stored.read(_ZERO, torch.int8)
    limit = 1 << (stored.format.bits - 1)
    for ending, tensor in ((_WEIGHT, values), (_ZERO, zeros)):
        if tensor is not None and not -limit <= tensor.min().item() <= tensor.max().item() < limit:
            raise stored.error(ending, f"holds values of more than {stored.format.bits} bits")
    return stored.record(values, stored.scales(_SCALE), zeros)


def _packed_integers(stored: StoredModule) -> QuantizedWeight:
    (n, k), bits = stored.shape, stored.format.bits
    name = stored.name + ".weight_shape"
    if stored.tensors.shape(name) is not None:
        found = stored.tensors.read(name, (torch.int64, torch.int32)).tolist()
        if found != [n, k]:
            raise stored.error(".weight_shape", f"is {found}, config.json implies {[n, k]}")
    values = unpack(stored.read(_PACKED, torch.int32), bits)[:, :k]
    zeros = None if stored.format.is_symmetric else unpack(stored.read(_ZERO, torch.int32).T, bits)[:, :n].T
    return stored.integers(values, stored.scales(_SCALE), zeros, ".weight_g_idx")

"""Norm, rotation and store of heads in Triton."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from backend.kernels.kv_write.kernel import kv_write
from backend.kernels.quantised_kv import LARGEST, dequantise, quantise, stored_width
from backend.kernels.rotary import Angles
from tests.backend.kernels.cases import COMPILED, Cases, Launch, Value
from tests.backend.kernels.rotary.cases import exact, table_of

Shape = tuple[int, int, int, int]  # tokens, heads of queries and of keys, and their size


def value(
    shape: Shape, has_weight: bool, part: str, kv: torch.dtype | None, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    """Queries, or all slots of memory; keys and values are stored as `kv`, None: as they are."""
    tokens, num_heads, num_kv_heads, size = shape
    num_rotated, stored = num_heads + num_kv_heads, kv or dtype
    heads = torch.randn(tokens, num_rotated + num_kv_heads, size).to(dtype).to(device)
    table = table_of(70, size).to(dtype).to(device)
    if kv is not None:  # numbers of both dtypes, and no angles
        heads = heads.to(kv).to(dtype)
        table[0], table[1] = 1, 0
    positions = torch.randint(70, (tokens,), dtype=torch.int32).to(device)
    slots = torch.randperm(48)[:tokens].to(device)
    weight = torch.randn(num_rotated, size).to(dtype).to(device) if has_weight else None
    memory = torch.randn(48, 2 * num_kv_heads, size).to(stored).to(device)
    rotated, wanted = exact(heads[:, :num_rotated], table, positions, weight), memory.double()
    wanted[slots] = torch.cat((rotated[:, num_heads:], heads[:, num_rotated:].double()), 1)
    kv_write(heads, Angles(table, positions), slots, memory, weight, 1e-6)
    if part == "queries":
        return heads[:, :num_heads], rotated[:, :num_heads]
    return memory.to(dtype), wanted.to(stored).double()


def in_8_bits(shape: Shape, kv: torch.dtype, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """All bytes of memory: those that quantised_kv.py makes of the same keys and values."""
    tokens, num_heads, num_kv_heads, size = shape
    heads = (torch.randn(tokens, num_heads + 2 * num_kv_heads, size) * torch.logspace(-3, 3, size)).to(dtype)
    heads[0, -1], heads[-1, -2, ::2] = 0, heads[-1, -2, 1::2]
    angles = Angles(torch.zeros(2, 70, size, dtype=dtype), torch.zeros(tokens, dtype=torch.int32))
    angles.table[0] = 1  # no angles: rotation rounds in its own way
    slots, width = torch.randperm(48)[:tokens], stored_width(size, kv)
    wanted = torch.zeros(48, 2 * num_kv_heads, width, dtype=torch.uint8).view(kv)
    memory = wanted.clone().to(device)
    wanted.view(torch.uint8)[slots] = quantise(heads[:, num_heads:], kv).view(torch.uint8)
    on_device = Angles(angles.table.to(device), angles.positions.to(device))
    kv_write(heads.to(device), on_device, slots.to(device), memory, None, 1e-6)
    found = memory.cpu().view(torch.uint8)
    assert torch.equal(found, wanted.view(torch.uint8)), (found != wanted.view(torch.uint8)).nonzero()
    return found.to(dtype), wanted.view(torch.uint8).double()


def not_finite(kv: torch.dtype, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """A head that is not finite is read as such, and its neighbours as they are."""
    heads = torch.randn(3, 6, 16).to(dtype)
    heads[0, 3, 2], heads[1, 4, 9], heads[2, 5, 15] = math.nan, math.inf, -math.inf
    angles = Angles(torch.zeros(2, 4, 16).to(dtype).to(device), torch.zeros(3, dtype=torch.int32).to(device))
    angles.table[0] = 1
    memory = torch.zeros(3, 4, stored_width(16, kv), dtype=torch.uint8).view(kv).to(device)
    kv_write(heads.clone().to(device), angles, torch.arange(3).to(device), memory, None, 1e-6)
    found, wanted = dequantise(memory.cpu(), 16, torch.float32), heads[:, 2:].float()
    is_finite = wanted.isfinite().all(-1)
    assert torch.equal(found.isfinite().all(-1), is_finite)
    return is_finite.to(dtype), found.isfinite().all(-1).double()


def launched(has_weight: bool, dtype: torch.dtype, kv: torch.dtype | None = None) -> None:
    """Qwen3-8B's heads."""
    angles = Angles(torch.zeros(2, 64, 128, dtype=dtype), torch.zeros(4, dtype=torch.int32))
    weight = torch.zeros(40, 128, dtype=dtype) if has_weight else None
    stored, width = kv or dtype, stored_width(128, kv or dtype)
    heads, memory = torch.zeros(4, 48, 128, dtype=dtype), torch.zeros(64, 16, width, dtype=stored)
    kv_write(heads, angles, torch.zeros(4, dtype=torch.int64), memory, weight, 1e-6)


SHAPES = [(1, 1, 1, 2), (3, 9, 3, 64), (2, 5, 5, 80), (4, 32, 8, 128)]
CASES = Cases(
    [
        Value(
            f"{part} of {shape}{' after a norm' if has_weight else ''}{f' as {kv}' if kv else ''}",
            partial(value, shape, has_weight, part, kv),
        )
        for shape in SHAPES
        for has_weight in (False, True)
        for part, kv in (("queries", None), ("memory", None), ("memory", torch.bfloat16))
        if kv is None or not has_weight
    ]
    + [
        Value(f"bytes of {shape} in {kv}", partial(in_8_bits, shape, kv))
        for shape in SHAPES
        for kv in LARGEST
    ]
    + [Value(f"what is not finite in {kv}", partial(not_finite, kv)) for kv in LARGEST],
    [Launch(f"norm {norm}", partial(launched, norm), dtypes=COMPILED) for norm in (False, True)]
    + [Launch(f"norm in {kv}", partial(launched, True, kv=kv)) for kv in LARGEST],
)

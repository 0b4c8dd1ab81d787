"""Norm, rotation and store of heads in Triton."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from backend.kernels.kv_write.kernel import kv_write
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


def launched(has_weight: bool, dtype: torch.dtype) -> None:
    """Qwen3-8B's heads."""
    angles = Angles(torch.zeros(2, 64, 128, dtype=dtype), torch.zeros(4, dtype=torch.int32))
    weight = torch.zeros(40, 128, dtype=dtype) if has_weight else None
    heads, memory = torch.zeros(4, 48, 128, dtype=dtype), torch.zeros(64, 16, 128, dtype=dtype)
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
    ],
    [Launch(f"norm {norm}", partial(launched, norm), dtypes=COMPILED) for norm in (False, True)],
)
